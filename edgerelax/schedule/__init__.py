"""Schedules: loop functions to kernels of one device."""

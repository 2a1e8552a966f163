"""Kernels of template stages, one file per kind."""

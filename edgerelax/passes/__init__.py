"""Passes: functions from a module to a module."""

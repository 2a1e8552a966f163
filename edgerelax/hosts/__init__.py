"""Hosts: what runs an artifact on this machine."""

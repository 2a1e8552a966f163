"""Interim printer of WebAssembly."""

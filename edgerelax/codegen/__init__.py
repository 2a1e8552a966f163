"""Kernels to WGSL and WebAssembly, modules to VM programs."""

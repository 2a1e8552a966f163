"""Functions that printed kernels call: WGSL and WAT text, included where used."""

"""All importer rows: importing this module fills the registry."""

from edgerelax.frontends.onnx import (
    attention,
    control,
    creation,
    elementwise,
    indexing,
    microsoft,
    nn,
    normalisation,
    quantization,
    recurrent,
    reduction,
    sampling,
    sequences,
    shape,
    slicing,
    spectral,
)

LOADED = (
    attention,
    control,
    creation,
    elementwise,
    indexing,
    microsoft,
    nn,
    normalisation,
    quantization,
    recurrent,
    reduction,
    sampling,
    sequences,
    shape,
    slicing,
    spectral,
)

"""All importer rows: importing this module fills the registry."""

from edgerelax.frontends.onnx import (
    control,
    creation,
    elementwise,
    indexing,
    microsoft,
    nn,
    normalisation,
    quantization,
    reduction,
    sampling,
    shape,
    slicing,
)

LOADED = (
    control,
    creation,
    elementwise,
    indexing,
    microsoft,
    nn,
    normalisation,
    quantization,
    reduction,
    sampling,
    shape,
    slicing,
)

"""ONNX models as modules: `load(path)`."""

from edgerelax.frontends.onnx.load import load

__all__ = ["load"]

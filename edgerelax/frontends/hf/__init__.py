"""Hugging Face folders: config.json, weights in safetensors, tokenizer.json."""

from edgerelax.frontends.hf.load import load

SETTINGS, WEIGHTS = ("*.json", "*.jinja", "*_Pooling/*.json"), "*.safetensors"
"""Patterns of the files that a model is read from."""

__all__ = ["SETTINGS", "WEIGHTS", "load"]

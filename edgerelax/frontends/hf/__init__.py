"""Hugging Face folders: config.json, weights in safetensors, tokenizer.json."""

from edgerelax.frontends.hf.load import load

SOURCES = ("*.json", "*.safetensors", "*.jinja")
"""Patterns of the files that a model is read from."""

__all__ = ["SOURCES", "load"]

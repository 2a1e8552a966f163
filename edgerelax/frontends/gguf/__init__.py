"""GGUF files, as llama.cpp writes them: one file with the sizes, the weights and the tokenizer."""

from edgerelax.frontends.gguf.load import load
from edgerelax.frontends.gguf.reading import is_gguf

__all__ = ["is_gguf", "load"]

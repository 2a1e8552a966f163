"""edgerelax: compile a model once, with symbolic shapes, and run it anywhere."""

from typing import TYPE_CHECKING, Any

from edgerelax.api import Executable, Library, Session, compile, load
from edgerelax.frontends import nn
from edgerelax.version import VERSION

if TYPE_CHECKING:
    from edgerelax.chat.load import load_chat
    from edgerelax.speech.load import load_transcriber

__version__ = VERSION

__all__ = [
    "Executable", "Library", "Session", "__version__", "compile", "load", "load_chat",
    "load_transcriber", "nn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loaders when they are asked for: what they need of other libraries takes a while to load."""
    if name == "load_chat":
        from edgerelax.chat.load import load_chat

        return load_chat
    if name == "load_transcriber":
        from edgerelax.speech.load import load_transcriber

        return load_transcriber
    raise AttributeError(f"module 'edgerelax' has no attribute {name!r}")

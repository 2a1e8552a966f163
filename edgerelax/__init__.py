"""edgerelax: compile a model once, with symbolic shapes, and run it anywhere."""

from edgerelax.api import Executable, Library, Session, compile, load
from edgerelax.frontends import nn
from edgerelax.version import VERSION

__version__ = VERSION

__all__ = ["Executable", "Library", "Session", "__version__", "compile", "load", "nn"]

"""Template stages: what loops cannot say, by kind, with the numpy function that defines each.

`TEMPLATES[kind](*input arrays, **params)` gives one array or several. Symbolic parameters come
evaluated. Schedules implement a kind per device; the meaning stands here alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.diagnostics import VerifyError

Array = npt.NDArray[Any]

TEMPLATES: dict[str, Callable[..., Any]] = {}


def run_template(kind: str, arrays: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    """The outputs of a template, always as a list."""
    if kind not in TEMPLATES:
        raise VerifyError(f"no template {kind}; known: {', '.join(sorted(TEMPLATES))}")
    results = TEMPLATES[kind](*arrays, **params)
    return [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]

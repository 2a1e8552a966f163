"""Arguments of public functions, checked against their annotations before anything is done."""

import functools
import inspect
import numbers
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from edgerelax.ir.diagnostics import InputError

P = ParamSpec("P")
R = TypeVar("R")


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: ("a whole number", lambda x: isinstance(x, numbers.Integral) and not _is_bool(x)),
    float: ("a number", lambda x: isinstance(x, numbers.Real) and not _is_bool(x)),
    bool: ("True or False", _is_bool),
    str: ("a text", lambda x: isinstance(x, str)),
    Path: ("a path", lambda x: isinstance(x, Path)),
    types.NoneType: ("None", lambda x: x is None),
}
"""What is checked, and how errors call it. Arguments that may be anything else are left alone."""


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; raises InputError where an argument is of another type than it says."""

    @functools.cache
    def wanted() -> dict[str, list[tuple[str, Callable[[Any], bool]]]]:
        hints = {n: _options(hint) for n, hint in get_type_hints(function).items()}
        plain = {n: kinds for n, kinds in hints.items() if kinds <= set(_PLAIN)}
        return {n: [_PLAIN[k] for k in _PLAIN if k in kinds] for n, kinds in plain.items()}

    signature = inspect.signature(function)

    @functools.wraps(function)
    def check(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        for name, kinds in wanted().items():
            if name in given and not any(fits(given[name]) for _, fits in kinds):
                known = " or ".join(told for told, _ in kinds)
                raise InputError(f"{name}: {given[name]!r} is not {known}")
        return function(*args, **kwargs)

    return check


def _options(hint: Any) -> set[Any]:
    return set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}

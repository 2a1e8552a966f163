"""The model's named dims as symbols: names, bounds and arithmetic of `dim_param`s.

One name is one symbol everywhere. Dims without a name ('?', '', 0, negative) are one symbol for
each place where they stand, called after it: `input_0` is dim 0 of `input`. Any size is allowed
that nobody excludes, 0 too, as ONNX has it.
"""

import re
from collections.abc import Mapping, Sequence

import onnx

from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.names import Names, identifier
from edgerelax.sym import Expr, as_expr, symbol
from edgerelax.sym import parse as parse_expr

DimSpec = int | tuple[int, int | None] | tuple[int, int | None, int]
"""A size; or its least and greatest (None: no limit) and, if wanted, what it is a multiple of."""

LARGEST = 2**63 - 1  # what the VM's integers hold
ANONYMOUS = frozenset(("", "?", "None", "none", "-1"))
_NAME = re.compile(r"[^\W\d]\w*")


class Dimensions:
    """The symbols of one import."""

    def __init__(self, wanted: Mapping[str, DimSpec] | None, names: Names) -> None:
        self._wanted = {name: _checked(name, spec) for name, spec in (wanted or {}).items()}
        self._used: set[str] = set()
        self._named: dict[str, Expr] = {}  # by dim_param, or the place of an anonymous dim
        self._names = names
        self._declared: frozenset[str] = frozenset()

    def declare(self, params: Sequence[str]) -> None:
        """All `dim_param`s of the model's inputs: arithmetic may speak only of names among them."""
        self._declared = frozenset(params) - ANONYMOUS

    def dim(self, proto: onnx.TensorShapeProto.Dimension, place: str) -> Expr:
        """A dim of an input; `place` names it if it has no name of its own."""
        if proto.HasField("dim_value") and proto.dim_value > 0:
            return as_expr(proto.dim_value)
        param = proto.dim_param.strip()
        if param in ANONYMOUS:
            return self._symbol(place)
        if not _NAME.fullmatch(param):
            parts = set(_NAME.findall(param))
            if parts and parts <= self._declared | set(self._wanted):
                return self._arithmetic(param)
        return self._symbol(param)

    def finish(self) -> None:
        """Complain of wanted dims that the model does not have."""
        unknown = sorted(set(self._wanted) - self._used)
        if unknown:
            known = ", ".join(sorted(self._named)) or "none: all its dims are fixed"
            raise InputError(
                f"the model has no dim {', '.join(map(repr, unknown))}", hint=f"its dims: {known}"
            )

    def _arithmetic(self, text: str) -> Expr:
        try:
            return parse_expr(text, self._symbol)
        except ValueError:
            return self._symbol(text)

    def _symbol(self, name: str) -> Expr:
        if name not in self._named:
            clean = identifier(name)
            key = name if name in self._wanted else clean
            spec = self._wanted.get(key)
            self._used.add(key)
            if isinstance(spec, int):
                self._named[name] = as_expr(spec)
            else:
                lo, hi, multiple = spec or (0, None, 1)
                self._named[name] = symbol(self._names.pick(clean), lo, hi, multiple)
        return self._named[name]


def _checked(name: str, spec: DimSpec) -> int | tuple[int, int | None, int]:
    """A dim's specification in one form. Raises InputError for one that no size satisfies."""
    if isinstance(spec, int):
        if _are_sizes(spec) and spec <= LARGEST:
            return spec
    elif isinstance(spec, tuple) and len(spec) in (2, 3):
        lo, hi, multiple = spec if len(spec) == 3 else (*spec, 1)
        if _are_sizes(lo, multiple, *(() if hi is None else (hi,))) and multiple >= 1:
            top = LARGEST if hi is None else min(hi, LARGEST)
            if -(-lo // multiple) * multiple <= top:
                return lo, None if hi is None else top, multiple
    raise InputError(
        f"dim {name}: {spec!r} is no size",
        hint="give a number, or (least, greatest or None), or (least, greatest, multiple of)",
    )


def _are_sizes(*numbers: object) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)

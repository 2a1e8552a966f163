"""The model's named dims as symbols: names, bounds and arithmetic of `dim_param`s.

One name is one symbol everywhere. Dims without a name ('?', '', 0, negative) are one symbol for
each place where they stand, called after it: `input_0` is dim 0 of `input`. Any size is allowed
that nobody excludes, 0 too, as ONNX has it.
"""

import re
from collections.abc import Mapping, Sequence

import onnx

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.ir.names import Names, identifier
from edgerelax.sym import Expr, as_expr
from edgerelax.sym import parse as parse_expr

ANONYMOUS = frozenset(("", "?", "None", "none", "-1"))
_NAME = re.compile(r"[^\W\d]\w*")


class Dimensions:
    """The symbols of one import."""

    def __init__(self, wanted: Mapping[str, DimSpec] | None, names: Names) -> None:
        self._wanted = Dims(wanted)
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
        self._wanted.finish(self._named)

    def _arithmetic(self, text: str) -> Expr:
        try:
            return parse_expr(text, self._symbol)
        except ValueError:
            return self._symbol(text)

    def _symbol(self, name: str) -> Expr:
        if name not in self._named:
            clean = identifier(name)
            key = name if name in self._wanted else clean
            self._named[name] = self._wanted.make(key, self._names.pick(clean))
        return self._named[name]

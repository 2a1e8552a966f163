"""Sliding windows, as convolutions and pools see them: counts, padding, positions, conditions.

Importers resolve ONNX's auto_pad by `same_pads` and its output_shape by `transposed_pads`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from edgerelax.ir.dtypes import BOOL
from edgerelax.ir.op import CallSite
from edgerelax.ir.scalar import Const, Scalar, compare, constant, in_range, op
from edgerelax.ops.maps import Dims, exprs, fail
from edgerelax.sym import (
    Expr,
    ExprLike,
    as_expr,
    ceildiv,
    maximum,
    minimum,
    prove_eq,
    proves_le,
    proves_lt,
)


def span(kernel: ExprLike, dilation: int = 1) -> Expr:
    """How far a kernel reaches: from its first tap to its last, both included."""
    return (as_expr(kernel) - 1) * dilation + 1


@dataclass(frozen=True, slots=True)
class Window:
    """How a window slides along one dim. `begin` and `end` pad, or crop where negative."""

    size: Expr
    kernel: Expr
    stride: int
    dilation: int
    begin: Expr
    end: Expr
    ceil: bool

    @property
    def span(self) -> Expr:
        return span(self.kernel, self.dilation)

    @property
    def count(self) -> Expr:
        """How many positions it takes, all of which start inside the input or before it."""
        room = self.size + self.begin + self.end - self.span
        if not self.ceil:
            return maximum(0, room // self.stride + 1)
        starts = ceildiv(self.size + self.begin, self.stride)
        return maximum(0, minimum(ceildiv(room, self.stride) + 1, starts))

    def position(self, at: ExprLike, tap: ExprLike) -> Expr:
        """Where in the input a tap of the window at `at` looks."""
        return as_expr(at) * self.stride + as_expr(tap) * self.dilation - self.begin

    @property
    def may_start_before(self) -> bool:
        return not proves_le(self.begin, 0)

    @property
    def may_end_after(self) -> bool:
        """Whether some tap may look beyond the end: by the count, only where there is padding."""
        return self.ceil or not proves_le(self.end, 0)

    def inside(self, at: ExprLike, tap: ExprLike) -> Scalar:
        """Whether a tap looks into the input: a literal if it always does."""
        position = self.position(at, tap)
        if not self.may_end_after:
            return compare("ge", position, 0) if self.may_start_before else constant(True, BOOL)
        if not self.may_start_before:
            return compare("lt", position, self.size)
        return in_range(position, 0, self.size)

    def taps(self, at: ExprLike, count_pads: bool = False) -> Expr:
        """How many taps of the window at `at` look into the input (or its padding, too)."""
        start = self.position(at, 0)
        limit = self.size + self.end if count_pads else self.size
        is_cut = self.ceil if count_pads else self.may_end_after
        past = (
            minimum(self.kernel, ceildiv(limit - start, self.dilation)) if is_cut else self.kernel
        )
        if count_pads or not self.may_start_before:
            return maximum(0, past)
        return maximum(0, past - maximum(0, ceildiv(-start, self.dilation)))


def all_of(conditions: Sequence[Scalar]) -> Scalar:
    """The conjunction, literals folded."""

    def both(a: Scalar, b: Scalar) -> Scalar:
        if isinstance(a, Const):
            return b if a.value else a
        if isinstance(b, Const):
            return a if b.value else b
        return op("and", a, b)

    always: Scalar = constant(True, BOOL)
    return reduce(both, conditions, always)


def windows_of(site: CallSite, sizes: Dims, kernel: Dims) -> tuple[Window, ...]:
    """One window per spatial dim, from the attributes strides, dilations, pads and ceil_mode.

    Empty attributes are strides and dilations of 1 and no padding; pads are befores, then afters.
    """
    rank = len(sizes)
    strides = per_dim(site, "strides", rank, 1)
    dilations = per_dim(site, "dilations", rank, 1)
    pads = pads_of(site, rank)
    if len(kernel) != rank:
        raise fail(site, f"a kernel of {len(kernel)} dims over {rank} spatial dims")
    ceil = bool(site.attrs.get("ceil_mode", False))
    found = tuple(
        Window(sizes[k], kernel[k], strides[k], dilations[k], pads[k], pads[rank + k], ceil)
        for k in range(rank)
    )
    for k, window in enumerate(found):
        _check_fits(site, k, window)
    return found


def per_dim(site: CallSite, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An attribute with one integer per spatial dim; empty is the default for all."""
    given = tuple(site.attrs[name])
    if given and len(given) != rank:
        raise fail(site, f"{len(given)} {name} for {rank} spatial dims")
    return given or (default,) * rank


def pads_of(site: CallSite, rank: int) -> Dims:
    """The attribute pads: befores, then afters; empty is none."""
    pads = exprs(site.attrs["pads"])
    if pads and len(pads) != 2 * rank:
        raise fail(site, f"{len(pads)} pads for {rank} spatial dims", "befores, then afters")
    return pads or (as_expr(0),) * (2 * rank)


def _check_fits(site: CallSite, k: int, window: Window) -> None:
    if prove_eq(window.kernel, 0) is True:
        raise fail(site, f"the kernel's spatial dim {k} is 0")
    padded = window.size + window.begin + window.end
    if proves_lt(padded, window.span) and proves_lt(0, window.size):
        raise fail(
            site,
            f"a window reaches {window.span}, spatial dim {k} with its padding is {padded}",
            "the input is too small for this kernel",
        )


def same_pads(
    sizes: Sequence[ExprLike],
    kernel: Sequence[ExprLike],
    strides: Sequence[int],
    dilations: Sequence[int],
    upper: bool,
) -> Dims:
    """Pads (befores, then afters) for SAME_UPPER or SAME_LOWER: outputs of ceil(size / stride)."""
    befores, afters = [], []
    for size, taps, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        count = ceildiv(size, stride)
        total = maximum(0, (count - 1) * stride + span(taps, dilation) - size)
        small, large = total // 2, total - total // 2
        befores.append(small if upper else large)
        afters.append(large if upper else small)
    return (*befores, *afters)


def transposed_size(
    size: ExprLike,
    kernel: ExprLike,
    stride: int,
    dilation: int,
    begin: ExprLike,
    end: ExprLike,
    extra: int,
) -> Expr:
    """The output size of a transposed convolution along one dim; `extra` is its output padding."""
    full = (as_expr(size) - 1) * stride + span(kernel, dilation) + extra
    return full - begin - end


def transposed_pads(
    sizes: Sequence[ExprLike],
    kernel: Sequence[ExprLike],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
    targets: Sequence[ExprLike],
    upper: bool,
) -> Dims:
    """Pads (befores, then afters) of a transposed convolution with outputs of the target sizes.

    ONNX's output_shape; for auto_pad SAME the targets are size * stride. The odd one goes to the
    end if `upper`, else to the beginning.
    """
    befores, afters = [], []
    for k, target in enumerate(targets):
        full = transposed_size(
            sizes[k], kernel[k], strides[k], dilations[k], 0, 0, output_padding[k]
        )
        total = full - target
        small, large = total // 2, total - total // 2
        befores.append(small if upper else large)
        afters.append(large if upper else small)
    return (*befores, *afters)

"""Annotation rules that families share: dtypes, broadcasting, folding of known integers."""

from collections.abc import Callable, Sequence

from edgerelax.ir.assumptions import agree
from edgerelax.ir.dtypes import BOOL, DType
from edgerelax.ir.op import CallSite
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops.maps import MAX_INTS, Dims, fail, ints_of, normal_axis, tensor_of
from edgerelax.sym import Expr, as_expr, bounds, eq, prove_eq, select

Kinds = tuple[str, ...]
NUMERIC: Kinds = ("float", "int", "uint")
FLOATS: Kinds = ("float",)
INTEGERS: Kinds = ("int", "uint")
BOOLS: Kinds = ("bool",)
ANY: Kinds = ("float", "int", "uint", "bool")

Fold = Callable[..., Expr | None]


def operands(site: CallSite) -> tuple[Tensor, ...]:
    """The present operands as tensors."""
    return tuple(tensor_of(site, k) for k, arg in enumerate(site.args) if arg is not None)


def common_dtype(site: CallSite, tensors: Sequence[Tensor], kinds: Kinds) -> DType | None:
    """The one dtype of all operands, of an allowed kind; None if none of them is known."""
    known = [t.dtype for t in tensors if t.dtype is not None]
    if not known:
        return None
    if any(d != known[0] for d in known):
        raise fail(
            site,
            f"operands of dtypes {', '.join(map(str, known))}",
            "an operator's operands have one dtype; cast them to one",
        )
    return allowed(site, known[0], kinds)


def allowed(site: CallSite, dtype: DType, kinds: Kinds) -> DType:
    """The dtype, if it is of a kind that the operator is defined for."""
    if dtype.kind not in kinds:
        raise fail(site, f"not defined for {dtype}", f"it takes {', '.join(kinds)}")
    return dtype


def broadcast(site: CallSite, tensors: Sequence[Tensor], dtype: DType | None) -> Tensor:
    """The tensor that operands broadcast to, as far as it is known."""
    ranks = [t.rank for t in tensors]
    known_ranks = [r for r in ranks if r is not None]
    rank = max(known_ranks) if len(known_ranks) == len(ranks) else None
    shapes = [t.dims for t in tensors if t.dims is not None]
    if len(shapes) < len(tensors):
        return Tensor(None, dtype, rank)
    return Tensor(broadcast_dims(site, shapes), dtype)


def broadcast_dims(site: CallSite, shapes: Sequence[Dims]) -> Dims:
    """The shape that all broadcast to."""
    result: Dims = ()
    for shape in shapes:
        rank = max(len(result), len(shape))
        left = (as_expr(1),) * (rank - len(result)) + result
        right = (as_expr(1),) * (rank - len(shape)) + shape
        pairs = zip(left, right, strict=True)
        dims = tuple(broadcast_dim(a, b) for a, b in pairs)
        if any(d is None for d in dims):
            raise fail(
                site,
                "shapes do not broadcast: " + " and ".join(show(s) for s in shapes),
                "aligned at their last dims, sizes are equal or one of them is 1",
            )
        result = tuple(d for d in dims if d is not None)
    return result


def broadcast_dim(a: Expr, b: Expr) -> Expr | None:
    """The size that two sizes broadcast to; None if they contradict.

    Where neither is known to be 1 nor other than 1, the result is `b` if a is 1, else a: right for
    all sizes that broadcast, 0 and 1 included.
    """
    if prove_eq(a, b) is True:
        return a if b.as_int() is None else b
    a_is_one, b_is_one = prove_eq(a, 1), prove_eq(b, 1)
    if a_is_one is True:
        return b
    if b_is_one is True:
        return a
    if a_is_one is False and b_is_one is False:
        if not agree(a, b):
            return None
        return a if b.as_int() is None else b
    need = f"{a} and {b} must be equal, or one of them 1"
    widened_a, widened_b = select(eq(a, 1), b, a), select(eq(b, 1), a, b)
    if a_is_one is False:
        return a if agree(widened_b, a, need) else None
    if b_is_one is False:
        return b if agree(widened_a, b, need) else None
    return widened_a if agree(widened_a, widened_b, need) else None


def show(dims: Dims) -> str:
    """A shape in a message."""
    return f"[{', '.join(map(str, dims))}]"


def folded(site: CallSite, fold: Fold | None, dtype: DType | None) -> IntTensor | None:
    """The result as known integers, elementwise over operands that are; None if it is not such.

    At least one operand must be an IntTensor; the others may be integer constants.
    """
    if fold is None or dtype is None or not any(isinstance(a, IntTensor) for a in site.args):
        return None
    found = [known_ints(site, k) for k, arg in enumerate(site.args) if arg is not None]
    ints = [i for i in found if i is not None]
    if len(ints) < len(found):
        return None
    length = _common_length([len(i.values) for i in ints])
    if length is None or length > MAX_INTS:
        return None
    columns = [i.values * length if len(i.values) == 1 else i.values for i in ints]
    values = [fold(*row) for row in zip(*columns, strict=True)]
    rank = max(i.rank for i in ints)
    return tracked(values, rank, dtype)


def tracked(values: Sequence[Expr | None], rank: int, dtype: DType) -> IntTensor | None:
    """An IntTensor of these values, if all are known and `dtype` holds each of them exactly."""
    known = tuple(v for v in values if v is not None)
    if len(known) < len(values) or not all(_fits(v, dtype) for v in known):
        return None
    return IntTensor(known, rank, dtype)


def known_ints(site: CallSite, k: int) -> IntTensor | None:
    """Operand k as known integers: an IntTensor, or a small constant of integers or bools."""
    ints = ints_of(site, k)
    if ints is not None:
        return ints
    data = site.constants[k] if k < len(site.constants) else None
    dtype = tensor_of(site, k).dtype
    if data is None or dtype is None or data.ndim > 1 or data.size > MAX_INTS:
        return None
    if data.dtype.kind not in "iub":
        return None
    return IntTensor(tuple(as_expr(int(v)) for v in data.reshape(-1)), data.ndim, dtype)


def _common_length(lengths: Sequence[int]) -> int | None:
    longer = {n for n in lengths if n != 1}
    return None if len(longer) > 1 else next(iter(longer), 1)


def _fits(value: Expr, dtype: DType) -> bool:
    """Whether the dtype surely holds the value. Sizes are taken to fit the 32- and 64-bit ints."""
    if dtype.kind == "int" and dtype.bits >= 32:
        return True
    low, high = bounds(value)
    if low is None or not (dtype.is_integer or dtype == BOOL):
        return False
    least, greatest = dtype.int_range
    if dtype.kind == "uint" and dtype.bits >= 32:
        return low >= 0
    return low >= least and high is not None and high <= greatest


def elementwise(
    site: CallSite,
    kinds: Kinds,
    fold: Fold | None = None,
    result: DType | None = None,
    names: Sequence[int] | None = None,
) -> Annotation:
    """The rule of elementwise operators: operands of one dtype that broadcast.

    `result` is the dtype of predicates; `names` are the operands that share a dtype (None: all).
    """
    tensors = operands(site)
    alike = tensors if names is None else [tensor_of(site, k) for k in names]
    common = common_dtype(site, alike, kinds)
    dtype = common if result is None else result
    whole = broadcast(site, tensors, dtype)
    return folded(site, fold, dtype) or whole


def reduced_axes(site: CallSite, rank: int) -> tuple[int, ...]:
    """The attribute `axes`, counted from the front and sorted; None is all."""
    axes = site.attrs["axes"]
    if axes is None:
        return tuple(range(rank))
    found = sorted(normal_axis(site, a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise fail(site, f"axes {tuple(axes)} name one twice")
    return tuple(found)


def reduce_dims(dims: Dims, reduced: Sequence[int], keepdims: bool) -> Dims:
    """A shape with some axes reduced."""
    one = as_expr(1)
    return tuple(
        one if k in reduced else d for k, d in enumerate(dims) if keepdims or k not in reduced
    )

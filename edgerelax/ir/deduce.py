"""Annotations between functions and branches: subsumption, common ancestors, scopes, calls.

Deduction goes forward only and answers coarsely rather than guess; it raises only what is provably
wrong. Where two sizes are merely not proved equal, a run-time check decides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import IntEnum

from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    MakeShape,
    MakeTuple,
    MatchCast,
    ReadInts,
    ToDevice,
    Value,
    Var,
    blocks,
    body_symbols,
    symbols_after,
)
from edgerelax.ir.op import CallSite
from edgerelax.ir.types import (
    Annotation,
    IntTensor,
    Object,
    Prim,
    Shape,
    Tensor,
    Tuple,
    as_tensor,
    exprs_of,
    symbols_of,
)
from edgerelax.ir.types import Callable as Signature
from edgerelax.sym import (
    Atom,
    Expr,
    ExprLike,
    Solution,
    Symbol,
    divisible,
    prove_eq,
    proves_le,
    unify,
)

Dims = tuple[Expr, ...]


class Fit(IntEnum):
    """How a value of a derived annotation fits a wanted one."""

    IMPOSSIBLE = 0  # provably not
    COARSE = 1  # too little is known: rank or dtype must be checked
    SYMBOLIC = 2  # only the equality of sizes is not proved
    PASS = 3


def subsumes(wanted: Annotation, derived: Annotation) -> Fit:
    """Whether whatever `derived` allows is allowed by `wanted`."""
    match wanted, derived:
        case (Object(), _):
            return Fit.PASS
        case (_, Object()):
            return Fit.COARSE
        case (IntTensor() as a, IntTensor() as b):
            if (a.dtype, a.rank, len(a.values)) != (b.dtype, b.rank, len(b.values)):
                return Fit.IMPOSSIBLE
            return _all_equal(a.values, b.values)
        case (IntTensor() as a, Tensor()):
            return min(subsumes(a.tensor, derived), Fit.COARSE)
        case (Tensor(), IntTensor() as b):
            return subsumes(wanted, b.tensor)
        case (Tensor() as a, Tensor() as b):
            return min(_known(a.dtype, b.dtype), _dims_fit(a, b))
        case (Shape() as a, Shape() as b):
            return _dims_fit(a, b)
        case (Prim() as a, Prim() as b):
            if a.value is None:
                return Fit.PASS
            return Fit.COARSE if b.value is None else _all_equal((a.value,), (b.value,))
        case (Tuple() as a, Tuple() as b):
            return _fields_fit(a.fields, b.fields)
        case (Signature() as a, Signature() as b):
            return min(_fields_fit(b.params, a.params), subsumes(a.result, b.result))
    return Fit.IMPOSSIBLE


def _fields_fit(wanted: Sequence[Annotation], derived: Sequence[Annotation]) -> Fit:
    if len(wanted) != len(derived):
        return Fit.IMPOSSIBLE
    return min(map(subsumes, wanted, derived), default=Fit.PASS)


def _known(wanted: object, derived: object) -> Fit:
    if wanted is None or wanted == derived:
        return Fit.PASS
    return Fit.COARSE if derived is None else Fit.IMPOSSIBLE


def _dims_fit(wanted: Tensor | Shape, derived: Tensor | Shape) -> Fit:
    ranks = _known(wanted.rank, derived.rank)
    if wanted.dims is None or ranks is not Fit.PASS:
        return ranks
    return Fit.COARSE if derived.dims is None else _all_equal(wanted.dims, derived.dims)


def _all_equal(wanted: Dims, derived: Dims) -> Fit:
    fits = {True: Fit.PASS, None: Fit.SYMBOLIC, False: Fit.IMPOSSIBLE}
    pairs = zip(wanted, derived, strict=True)
    return min((fits[prove_eq(a, b)] for a, b in pairs), default=Fit.PASS)


def lca(a: Annotation, b: Annotation) -> Annotation:
    """The finest annotation that both fit."""
    match a, b:
        case (IntTensor(), IntTensor()) if subsumes(a, b) is Fit.PASS:
            return a
        case (Tensor() | IntTensor(), Tensor() | IntTensor()):
            x, y = as_tensor(a), as_tensor(b)
            assert x is not None and y is not None
            rank, dims = _common_dims(x, y)
            return Tensor(dims, x.dtype if x.dtype == y.dtype else None, rank)
        case (Shape(), Shape()):
            rank, dims = _common_dims(a, b)
            return Shape(dims, rank)
        case (Prim(), Prim()):
            return a if subsumes(a, b) is Fit.PASS else Prim()
        case (Tuple(), Tuple()) if len(a.fields) == len(b.fields):
            return Tuple(tuple(map(lca, a.fields, b.fields)))
        case (Signature(), Signature()) if subsumes(a, b) is Fit.PASS:
            return a
    return Object()


def _common_dims(a: Tensor | Shape, b: Tensor | Shape) -> tuple[int | None, Dims | None]:
    if a.rank is None or a.rank != b.rank:
        return None, None
    if a.dims is None or b.dims is None or _all_equal(a.dims, b.dims) is not Fit.PASS:
        return a.rank, None
    return a.rank, a.dims


def map_exprs(annotation: Annotation, change: Callable[[Expr], Expr | None]) -> Annotation:
    """Replace every integer expression; where `change` gives None, what needs it is forgotten."""

    def each(exprs: Dims) -> Dims | None:
        changed = [change(e) for e in exprs]
        known = tuple(e for e in changed if e is not None)
        return known if len(known) == len(exprs) else None

    match annotation:
        case Tensor(dims=dims) if dims is not None:
            return Tensor(each(dims), annotation.dtype, annotation.rank)
        case Shape(dims=dims) if dims is not None:
            return Shape(each(dims), annotation.rank)
        case IntTensor():
            values = each(annotation.values)
            if values is None:
                return annotation.tensor
            return IntTensor(values, annotation.rank, annotation.dtype)
        case Prim(value=value) if value is not None:
            return Prim(change(value))
        case Tuple():
            return Tuple(tuple(map_exprs(f, change) for f in annotation.fields))
        case Signature():
            params = tuple(map_exprs(p, change) for p in annotation.params)
            return Signature(params, map_exprs(annotation.result, change))
    return annotation


def substitute_annotation(annotation: Annotation, mapping: Mapping[Atom, ExprLike]) -> Annotation:
    """Replace symbols; the very annotation if it mentions none of them."""
    found = map_exprs(annotation, lambda e: e.subs(mapping)) if mapping else annotation
    return annotation if found == annotation else found


def erase_to(annotation: Annotation, visible: Set[Symbol]) -> Annotation:
    """Forget whatever is said in symbols that are not visible."""
    if symbols_of(annotation) <= visible:
        return annotation
    return map_exprs(annotation, lambda e: e if e.symbols() <= visible else None)


def defined_by(annotation: Annotation) -> set[Symbol]:
    """The symbols that a parameter or match_cast of this annotation can define: the bare ones."""
    return {e.atom for e in exprs_of(annotation) if isinstance(e.atom, Symbol)}


def symbols_defined(binding: Binding) -> set[Symbol]:
    """Symbols that a binding can define for what follows: those of a match_cast, after bodies."""
    if isinstance(binding.value, MatchCast):
        return defined_by(binding.var.annotation)
    return set(symbols_after(binding.value))


def symbols_inside(block: Block) -> set[Symbol]:
    """Symbols that a block defines, and what nests in it."""
    bindings = [b for inner in blocks(block) for b in inner.bindings]
    return {s for b in bindings for s in (*symbols_defined(b), *body_symbols(b.value))}


def signature(func: GraphFunc) -> Signature:
    """What a graph function takes and gives: one result as it is, several as a Tuple."""
    results = tuple(v.annotation for v in func.body.results)
    params = tuple(p.annotation for p in func.params)
    return Signature(params, results[0] if len(results) == 1 else Tuple(results))


def derive_call(name: str, callee: Signature, args: Sequence[Annotation]) -> Annotation:
    """The result of a call, from the callee's signature alone.

    What the result says in symbols that stay unbound is forgotten.
    """
    bindings = bind_call(name, callee, args).bindings
    bound: dict[Atom, ExprLike] = {s: e for s, e in bindings.items()}
    return map_exprs(
        callee.result, lambda e: e.subs(bound) if e.symbols() <= bound.keys() else None
    )


def bind_call(name: str, callee: Signature, args: Sequence[Annotation]) -> Solution:
    """What a call makes of the callee's symbols: bare ones first, then those that occur linearly.

    Raises ShapeError for arguments that provably do not fit.
    """
    if len(args) != len(callee.params):
        raise ShapeError(f"{name}: takes {len(callee.params)} arguments, got {len(args)}")
    pairs: list[tuple[Expr, Expr]] = []
    for k, (param, arg) in enumerate(zip(callee.params, args, strict=True)):
        shapeless = map_exprs(param, lambda _: None)
        if subsumes(shapeless, arg) is Fit.IMPOSSIBLE:
            raise ShapeError(f"{name}: argument {k} must be {param}, got {arg}")
        pairs.extend(_expr_pairs(param, arg))
    solution = unify(pairs)
    for wanted, given in solution.contradictions:
        raise ShapeError(f"{name}: wants {wanted}, got {given}", node=f"{name}: {callee}")
    return solution


def keeps_bounds(symbol: Symbol, value: Expr, *, is_size: bool) -> bool:
    """Whether a value is proved to be one that the symbol may have. Sizes are never negative."""
    low = (is_size and symbol.lo <= 0) or proves_le(symbol.lo, value)
    high = symbol.hi is None or proves_le(value, symbol.hi)
    return low and high and divisible(value, symbol.multiple_of)


def _expr_pairs(param: Annotation, arg: Annotation) -> Iterator[tuple[Expr, Expr]]:
    """Expressions that stand in the same place; functions bind nothing."""
    match param, arg:
        case (Tensor() | IntTensor(), Tensor() | IntTensor()):
            if isinstance(param, IntTensor) and isinstance(arg, IntTensor):
                yield from zip(param.values, arg.values, strict=False)
            a, b = as_tensor(param), as_tensor(arg)
            if a is not None and b is not None and a.dims is not None and b.dims is not None:
                yield from zip(a.dims, b.dims, strict=True)
        case (Shape(dims=dims), Shape(dims=given)) if dims is not None and given is not None:
            yield from zip(dims, given, strict=True)
        case (Prim(value=value), Prim(value=other)) if value is not None and other is not None:
            yield value, other
        case (Tuple(fields=fields), Tuple(fields=others)):
            for a_field, b_field in zip(fields, others, strict=True):
                yield from _expr_pairs(a_field, b_field)


def call_site(
    call: Call, name: str = "", origin: str = "", result: Annotation | None = None
) -> CallSite:
    """What an operator's rules see of a call."""
    return CallSite(
        call.op,
        tuple(None if a is None else a.annotation for a in call.args),
        call.attrs,
        tuple(a.data if isinstance(a, Constant) else None for a in call.args),
        result,
        name,
        origin,
    )


def deduce(value: Expression, name: str = "", origin: str = "") -> Annotation | None:
    """The annotation of an expression from its operands; None if it must be given with it.

    Given with it are those of call_tir, library calls, match_cast and branches; calls of graph
    functions are deduced by `derive_call`.
    """
    match value:
        case Call():
            return value.op.infer(call_site(value, name, origin))
        case ReadInts(value=source):
            return _read(source)
        case MakeShape(dims=dims):
            return Shape(dims)
        case MakeTuple(fields=fields):
            return Tuple(tuple(f.annotation for f in fields))
        case GetItem(value=source, index=index):
            return _field(source, index, name, origin)
        case ToDevice(value=source):
            return source.annotation
        case Var() | Constant():
            return value.annotation
    return None


def _read(source: Value) -> Annotation:
    if isinstance(source.annotation, IntTensor):
        return Shape(source.annotation.values)
    tensor = as_tensor(source.annotation)
    if tensor is None or tensor.dims is None:
        return Shape(None, 1 if tensor is not None and tensor.rank == 0 else None)
    return Shape(None, tensor.dims[0].as_int() if tensor.dims else 1)


def _field(source: Value, index: int, name: str, origin: str) -> Annotation:
    whole = source.annotation
    if not isinstance(whole, Tuple):
        return Object()
    if not 0 <= index < len(whole.fields):
        raise ShapeError(
            f"field {index} of {source.name}, which has {len(whole.fields)}",
            node=name,
            origin=origin,
        )
    return whole.fields[index]

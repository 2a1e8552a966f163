"""The order in which topk has elements: by value, NaN greater than all, then by place."""

from edgerelax.ir.kernel import KExpr, kop
from edgerelax.schedule.strategies.templates.grids import Body
from edgerelax.sym import Expr, Opaque, as_expr


def comes_before(a: KExpr, i: KExpr, b: KExpr, j: KExpr, *, largest: bool) -> KExpr:
    """Whether element i of value a comes before element j of value b."""
    better: KExpr = kop("gt" if largest else "lt", a, b)
    same: KExpr = kop("eq", a, b)
    if a.dtype.is_float:
        nan_a, nan_b = kop("isnan", a), kop("isnan", b)
        first, second = (nan_a, nan_b) if largest else (nan_b, nan_a)
        better = kop("or", better, kop("and", first, kop("not", second)))
        same = kop("or", same, kop("and", nan_a, nan_b))
    return kop("or", better, kop("and", same, kop("lt", i, j)))


def index_of(body: Body, value: KExpr) -> Expr:
    """A computed integer as an index."""
    return as_expr(Opaque(body.held(value), 0, None))

"""Weights in the layouts of schedules: made once, whichever schedule or program asks."""

import numpy as np

from edgerelax.codegen.packed_weights import PackedWeights
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Constant
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer
from edgerelax.ir.types import tensor
from edgerelax.sym import as_expr


def turned(rows: int, columns: int) -> Packed:
    """A weight's transpose."""
    source = Buffer("w", F32, (as_expr(rows), as_expr(columns)))
    out = Buffer("w_turned", F32, (as_expr(columns), as_expr(rows)))
    i, j = grid(out)
    body = source[(j.expr, i.expr)]
    return Packed(LoopFunc("w_turned", (source,), (out,), (Stage(out, (i, j), body),)))


def test_equal_layouts_are_made_once() -> None:
    weight = Constant("w", np.arange(6, dtype=np.float32).reshape(2, 3), tensor((2, 3), F32))
    other = Constant("v", np.ones((2, 3), np.float32), tensor((2, 3), F32))
    packed = PackedWeights()
    first = packed.get(turned(2, 3), weight)
    np.testing.assert_array_equal(first.data, weight.data.T)
    assert packed.get(turned(2, 3), weight) is first  # as another schedule says it
    np.testing.assert_array_equal(packed.get(turned(2, 3), other).data, other.data.T)

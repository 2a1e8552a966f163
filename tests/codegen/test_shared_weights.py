"""A table that a product reads too is stored once, in the product's layout; results stay."""

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends import nn
from edgerelax.frontends.nn.layers import Embedding
from edgerelax.frontends.nn.quantise import quantise
from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol

WIDTH = 64


class _Tied(nn.Module):
    """Scores of rows of a table by all its rows; with `whole`, all of it moved beside."""

    def __init__(self, count: int, whole: bool) -> None:
        self.table, self.whole = Embedding(count, WIDTH), whole

    def forward(self, ids: nn.Tensor, by: nn.Tensor) -> dict[str, nn.Tensor]:
        rows = self.table(ids)
        out = {"rows": rows, "scores": self.table.as_linear(rows * by)}
        if self.whole:
            out["moved"] = nn.Tensor(by.builder, self.table.weight.emit(by.builder)) + by
        return out


def tied(count: int, scheme: str, whole: bool = False) -> Module:
    model = _Tied(count, whole)
    data = np.random.default_rng(0).standard_normal((count, WIDTH)).astype(np.float32)
    model.load({"table.weight": data if scheme == "f32" else quantise(data, scheme)})
    by = nn.Input((1,), F32)
    return nn.trace(model.forward, {"ids": nn.Input((symbol("n"),), I64), "by": by})


def compiled(module: Module, *without: str) -> edgerelax.Executable:
    return edgerelax.compile(module, target="cpu", variants=("cpu",), without=without, verify=True)


def stored(executable: edgerelax.Executable) -> int:
    return sum(w.bytes for w in executable.artifact.manifest.weights)


@pytest.mark.parametrize("scheme", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("count", [64, 50])
def test_tables_are_stored_once(count: int, scheme: str) -> None:
    module = tied(count, scheme)
    once, twice = compiled(module), compiled(module, "share_weights")
    assert stored(once) * count == (stored(twice) - stored(once)) * (-(-count // 8) * 8)
    with once.session("cpu") as found, twice.session("cpu") as wanted:
        for ids in (np.array([-1]), np.arange(-count, count)):
            given = {"ids": ids, "by": np.array([0.5], np.float32)}
            got, want = found.run(given), wanted.run(given)
            for name in want:
                np.testing.assert_array_equal(got[name], want[name])


def test_a_table_that_is_read_in_order_too_stays() -> None:
    module = tied(64, "f32", whole=True)
    assert stored(compiled(module)) == stored(compiled(module, "share_weights"))

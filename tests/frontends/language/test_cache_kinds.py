"""Caches of f16 and int8: nearly the same logits, in place, in half and a quarter of the memory."""

from collections.abc import Iterator

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.language.cache import PAGE
from edgerelax.frontends.language.storage import Kind
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import DTYPES
from edgerelax.ir.graph import Call
from edgerelax.ir.outcome import taken
from edgerelax.passes.fuse_attention import fuse_attention
from edgerelax.pipeline import GRAPH
from tests.frontends.language.test_cache import Sequences, only, tiny, tokens_of, whole

TOLERANCE: dict[Kind, float] = {"f16": 2e-3, "int8": 4e-2}
"""Of the largest logit; measured 5e-4 and 1.3e-2."""
STATES: dict[Kind, int] = {"f16": 4, "int8": 8}
"""Two layers' keys and values, and their scales."""
ON: tuple[tuple[Kind, str, str], ...] = (
    ("int8", "cpu", "cpu"),
    ("int8", "wgpu", "software"),
    ("f16", "wgpu", "software"),  # without shader-f16
)


@pytest.fixture(scope="module", params=ON, ids="-".join)
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Session]]:
    kind, device, variant = request.param
    target = "cpu" if device == "cpu" else "webgpu"
    module = only(tiny(cache=kind), "main", "step", "read")
    executable = edgerelax.compile(module, target=target, variants=(variant,))
    passes = executable.report.passes
    assert passes["fuse_attention"]["done"]["attention fused"] == 4
    planned = passes[f"{variant}-plan_memory"]["done"]
    assert planned["state updated in place"] == 1 + STATES[kind]
    with executable.session(device) as session:
        yield kind, session


def test_logits(opened: tuple[Kind, Session]) -> None:
    kind, session = opened
    session.allocate({"slots": 6 * PAGE, "rows": 1})
    sizes = 5, 1, 16, 15
    tokens = tokens_of(1, sum(sizes))
    wanted, host, start = whole(session, tokens), Sequences(session, [[4, 0, 2]]), 0
    for size in sizes:
        found = host.step(tokens[start : start + size])
        start += size
        error = np.abs(found[0] - wanted[start - 1]).max()
        assert 0 < error < TOLERANCE[kind] * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ("f32", "f16", "int8"))
def test_attention_reads_what_is_stored_by_its_pages(kind: Kind) -> None:
    """No kernel gathers all that a text has, token after token."""
    module = tiny(cache=kind)
    for step in GRAPH[: GRAPH.index(fuse_attention) + 1]:
        module, _ = taken(step(module))
    found = [b.value for b in module.funcs["step"].body.bindings]
    attending = [c for c in found if isinstance(c, Call) and c.op.name == "attention"]
    assert len(attending) == 2
    for call in attending:
        assert all(call.attrs["tables"])


def bytes_of(session: Session, slots: int) -> int:
    """What the cache takes."""
    session.allocate({"slots": slots, "rows": 1})
    states = [s for s in session.artifact.manifest.states if s.name[:4] in ("keys", "valu")]
    return sum(
        int(np.prod(session.states[s.name])) * DTYPES[s.dtype].numpy.itemsize for s in states
    )


def test_bytes(opened: tuple[Kind, Session]) -> None:
    """Keys and values of two layers, two groups each, 8 wide; a scale of 4 bytes for each row."""
    kind, session = opened
    rows = 32 * 2 * 2 * 2
    assert bytes_of(session, 32) == rows * (8 * 2 if kind == "f16" else 8 + 4)


def test_rows_of_zeros_and_extremes_are_codes_of_what_they_are() -> None:
    """Symmetric: the largest value of a row is 127, what has none is 0."""
    from edgerelax.frontends.language import storage
    from edgerelax.frontends.nn import Input, Tensor, trace
    from edgerelax.ir.dtypes import F32, I32
    from edgerelax.ir.evaluate import evaluate

    def forward(rows: Tensor, slots: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        updated = dict(states)
        storage.put(updated, "x", slots, rows)
        return {"y": storage.get(updated, "x", slots), **updated}

    module = trace(
        forward,
        {"rows": Input((3, 2, 4), F32), "slots": Input((3,), I32)},
        states=storage.stored("x", 4, 2, 4, "int8"),
    )
    rows = np.zeros((3, 2, 4), np.float32)
    rows[0, 1] = [-2.54, 0.01, 1.27, 0.0]
    rows[1, 0] = [1e-35, 0, 0, 0]
    rows[2, 0] = [1e30, -1e30, 1, 0]
    before = {"x": np.full((4, 2, 4), 5, np.int8), "x.scales": np.ones((4, 2), np.float32)}
    found = evaluate(module, {"rows": rows, "slots": np.array([2, 0, 99], np.int32), **before})
    assert found["x"][2, 1].tolist() == [-127, 0, 64, 0]  # half a step goes to the even code
    assert not found["x"][0].any()
    assert (found["x"][[1, 3]] == 5).all()  # the last one went nowhere
    np.testing.assert_allclose(found["y"][0, 1], [-2.54, 0, 1.28, 0], rtol=1e-6)


def test_what_has_no_cache_or_no_such_one() -> None:
    with pytest.raises(InputError, match=r"(?s)stored as 'q4'.*f32, f16, int8"):
        edgerelax.compile("model.gguf", cache="q4")
    with pytest.raises(InputError, match=r"(?s)no cache to store.*leave cache out"):
        edgerelax.compile(tiny(), cache="f16")

from dataclasses import replace

import numpy as np
import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I8, I32, I64
from edgerelax.ir.loop import LoopFunc, Template
from edgerelax.ir.scalar import Buffer
from edgerelax.ir.templates import TEMPLATES
from edgerelax.schedule.select import schedule
from edgerelax.schedule.strategies.template import EMITTERS
from edgerelax.schedule.strategies.templates import cumsum
from edgerelax.schedule.target import WASM
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check

N, K, B, T = symbol("n"), symbol("k"), symbol("b"), symbol("t")


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def template(kind, inputs, outputs, **params):
    return LoopFunc(
        kind,
        tuple(inputs),
        tuple(outputs),
        (Template(kind, tuple(inputs), tuple(outputs), params),),
    )


@pytest.mark.parametrize("dtype", (F32, F16, I64, I8))
@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("exclusive", (False, True))
def test_cumsum(dtype, exclusive, reverse):
    func = template(
        "cumsum",
        [buf("x", dtype, 2, N, K)],
        [buf("y", dtype, 2, N, K)],
        exclusive=exclusive,
        reverse=reverse,
    )
    for n, k in ((1, 1), (3, 7), (2, 0), (0, 3)):
        check(func, {"n": n, "k": k}, tolerance=2e-3 if dtype is F16 else 2e-5)


CHUNKED = (F32, False, True), (I64, True, False), (F16, True, True), (I8, False, False)


@pytest.mark.parametrize("dtype,exclusive,reverse", CHUNKED)
def test_cumsum_in_chunks(dtype, exclusive, reverse, monkeypatch):
    monkeypatch.setattr(cumsum, "_CHUNK", 4)
    operands = [buf("x", dtype, 2, N)], [buf("y", dtype, 2, N)]
    func = template("cumsum", *operands, exclusive=exclusive, reverse=reverse)
    for n in (0, 1, 4, 5, 19):
        check(func, {"n": n}, tolerance=2e-3 if dtype is F16 else 2e-5)


@pytest.mark.parametrize("largest", (False, True))
@pytest.mark.parametrize("dtype", (F32, F16, I32))
def test_topk(dtype, largest):
    for n, k in ((1, 1), (5, 3), (8, 8), (37, 37), (4, 0)):
        x = buf("x", dtype, 3, N)
        outs = [buf("v", dtype, 3, k), buf("i", I64, 3, k)]
        check(template("topk", [x], outs, k=k, largest=largest, sorted=True), {"n": n})


def test_topk_puts_nan_first_and_keeps_the_order_of_equals():
    values = np.array([[1, np.nan, 1, -np.inf, np.nan, np.inf, 1]], np.float32)
    for largest in (False, True):
        outs = [buf("v", F32, 1, 7), buf("i", I64, 1, 7)]
        func = template("topk", [buf("x", F32, 1, 7)], outs, k=7, largest=largest, sorted=True)
        check(func, {}, arrays=[values])


@pytest.mark.parametrize("shape", ((), (0,), (7,), (3, 300), (2, 3, 5)))
@pytest.mark.parametrize("dtype", (BOOL, F32, I64))
def test_nonzero(shape, dtype):
    rng = np.random.default_rng(0)
    x = (rng.random(shape) < 0.3).astype(dtype.numpy)
    x = np.asarray(x)
    places = buf("p", I64, len(shape), max(1, x.size))
    func = template(
        "nonzero", [buf("x", dtype, *shape)], [places, buf("c", I64, 1)], capacity=max(1, x.size)
    )
    check(func, {}, arrays=[x])


@pytest.mark.parametrize("reduction", ("none", "add", "mul", "max", "min"))
@pytest.mark.parametrize("dtype", (F32, I8, F16))
def test_scatter_elements(reduction, dtype):
    rng = np.random.default_rng(3)
    for along in (0, 1):
        data, y = buf("d", dtype, 4, N), buf("y", dtype, 4, N)
        indices, updates = buf("i", I64, 3, 5), buf("u", dtype, 3, 5)
        func = template("scatter", [data, indices, updates], [y], axis=along, reduction=reduction)
        arrays = [
            rng.integers(-4, 4, (4, 6)).astype(dtype.numpy),
            rng.integers(-4, 7, (3, 5)),
            rng.integers(-2, 3, (3, 5)).astype(dtype.numpy),
        ]
        check(func, {"n": 6}, arrays=arrays)


@pytest.mark.parametrize("reduction", ("none", "add"))
@pytest.mark.parametrize("depth", (1, 2, 3))
def test_scatter_nd(reduction, depth):
    rng = np.random.default_rng(4)
    shape, count = (3, 4, 5), (2, 3)
    updates = (*count, *shape[depth:])
    func = template(
        "scatter_nd",
        [buf("d", F32, *shape), buf("i", I32, *count, depth), buf("u", F32, *updates)],
        [buf("y", F32, *shape)],
        reduction=reduction,
    )
    arrays = [
        rng.standard_normal(shape).astype(np.float32),
        rng.integers(-4, 5, (*count, depth)).astype(np.int32),
        rng.standard_normal(updates).astype(np.float32),
    ]
    check(func, {}, arrays=arrays)


@pytest.mark.parametrize("reduction", ("add", "mul", "max", "min"))
@pytest.mark.parametrize("dtype", (F32, I64, I8))
def test_scatter_of_any_number(reduction, dtype):
    """As many updates as there are: by an invocation each on a GPU, but for most of 64 bits."""
    rng = np.random.default_rng(5)
    for along, shape in ((0, (N, 5)), (1, (3, N))):
        data, y = buf("d", dtype, 4, 6), buf("y", dtype, 4, 6)
        indices, updates = buf("i", I64, *shape), buf("u", dtype, *shape)
        func = template("scatter", [data, indices, updates], [y], axis=along, reduction=reduction)
        for n in (0, 1, 9):
            sizes = tuple(n if d is N else d for d in shape)
            arrays = [
                rng.integers(-4, 4, (4, 6)).astype(dtype.numpy),
                rng.integers(-4, 7, sizes),
                rng.integers(-2, 3, sizes).astype(dtype.numpy),
            ]
            check(func, {"n": n}, arrays=arrays)


@pytest.mark.parametrize("depth", (1, 2))
def test_scatter_nd_of_any_number(depth):
    rng = np.random.default_rng(6)
    slices = (4, 5)[depth - 1 :]
    func = template(
        "scatter_nd",
        [buf("d", F32, 3, 4, 5), buf("i", I64, 2, N, depth), buf("u", F32, 2, N, *slices)],
        [buf("y", F32, 3, 4, 5)],
        reduction="add",
    )
    for n in (0, 7):
        arrays = [
            rng.standard_normal((3, 4, 5)).astype(np.float32),
            rng.integers(-4, 5, (2, n, depth)),
            rng.standard_normal((2, n, *slices)).astype(np.float32),
        ]
        check(func, {"n": n}, arrays=arrays)


CELLS = {
    "lstm": (4, ("sigmoid", "tanh", "tanh")),
    "gru": (3, ("sigmoid", "tanh")),
    "rnn": (1, ("tanh",)),
}


def recurrence(
    kind, hidden, directions=("forward",), extra=("h",), functions=None, dtype=F32, **flags
):
    gates, names = CELLS[kind]
    count = len(directions)
    operands = {
        "xw": buf("xw", dtype, count, T, B, gates * hidden),
        "r": buf("r", dtype, count, gates * hidden, hidden),
        "rb": buf("rb", dtype, count, hidden),
        "h": buf("h", dtype, count, B, hidden),
        "c": buf("c", dtype, count, B, hidden),
        "p": buf("p", dtype, count, 3 * hidden),
        "lengths": buf("lengths", I32, B),
    }
    present = {k: v for k, v in operands.items() if k in ("xw", "r", *extra)}
    outs = [buf("y", dtype, T, count, B, hidden), buf("hn", dtype, count, B, hidden)]
    if kind == "lstm":
        outs.append(buf("cn", dtype, count, B, hidden))
    own = functions or tuple((name, 0.5, 0.3) for name in names)
    return template(
        kind,
        present.values(),
        outs,
        operands=tuple(present),
        directions=directions,
        activations=own * count,
        **flags,
    )


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("directions", (("forward",), ("reverse",), ("forward", "reverse")))
def test_recurrence(kind, directions):
    extra = ("h", "c") if kind == "lstm" else ("h",)
    for t, b, hidden in ((1, 1, 1), (3, 2, 8), (0, 2, 3), (2, 1, 70), (2, 2, 32)):
        check(recurrence(kind, hidden, directions, extra), {"t": t, "b": b}, tolerance=1e-4)


@pytest.mark.parametrize(
    ("kind", "extra", "flags"),
    [
        ("lstm", ("p",), {}),
        ("lstm", (), {"clip": 0.5, "input_forget": True}),
        ("gru", ("h",), {"linear_before_reset": True}),
        ("gru", ("rb",), {"linear_before_reset": True, "clip": 1.0}),
        ("rnn", (), {"clip": 0.3}),
    ],
)
def test_recurrence_options(kind, extra, flags):
    check(
        recurrence(kind, 6, ("forward", "reverse"), extra, **flags),
        {"t": 3, "b": 2},
        tolerance=1e-4,
    )


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("dtype", (F32, F16))
def test_recurrent_weights_in_panels(kind, dtype):
    """Those of whole fours of units are packed."""
    for hidden in (4, 12, 13):
        func = recurrence(kind, hidden, ("forward", "reverse"), dtype=dtype)
        func = replace(func, weights=frozenset("r"))
        packed = schedule(func, WASM).versions[0].packed
        gates = CELLS[kind][0]
        assert [[d.as_int() for d in p.buffer.dims] for p in packed] == (
            [] if hidden % 4 else [[hidden // 4, gates, hidden // 4, 4, 4]] * 2
        )
        tolerance = 1e-2 if dtype == F16 else 1e-4
        check(func, {"t": 2, "b": 2}, targets=(WASM,), tolerance=tolerance)


@pytest.mark.parametrize("kind", CELLS)
def test_sequences_of_different_lengths(kind):
    func = recurrence(kind, 4, ("forward", "reverse"), ("h", "lengths"))
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([d.eval({"t": 5, "b": 3}) for d in b.dims]).astype(b.dtype.numpy)
        for b in func.inputs
    ]
    arrays[-1] = np.array([5, 0, 2], np.int32)
    check(func, {"t": 5, "b": 3}, arrays=arrays, tolerance=1e-4)


@pytest.mark.parametrize(
    "name",
    (
        "relu",
        "affine",
        "leaky_relu",
        "thresholded_relu",
        "scaled_tanh",
        "hard_sigmoid",
        "elu",
        "softsign",
        "softplus",
    ),
)
def test_every_activation(name):
    func = recurrence("rnn", 4, functions=((name, 0.5, 0.3),))
    check(func, {"t": 2, "b": 2}, tolerance=1e-4)


def test_half_float_states():
    check(recurrence("lstm", 8, dtype=F16), {"t": 3, "b": 2}, tolerance=1e-2)


def test_every_kind_of_template_has_kernels():
    assert set(EMITTERS) == set(TEMPLATES)

"""Tokens drawn from logits: on the interpreter and on hosts as by the reference, and how often."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.kernel import SUBGROUPS, for_features
from edgerelax.ir.kernel_interp import run_kernel
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.token_sampling import uniforms
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import ExprLike, symbol
from tests.kernel_runners import run_wasm, run_wgpu, wgpu_device
from tests.schedule.oracle import assert_close, run_version
from tests.schedule.test_templates import buf, template

B, V = symbol("b"), symbol("v")
KINDS = (  # temperature, top-p, min-p, top-k
    (0.0, 0.5, 0.1, 2),
    (1.0, 1.0, 0.0, 0),
    (0.7, 0.9, 0.0, 0),
    (1.5, 1.0, 0.0, 40),
    (1.0, 0.8, 0.05, 200),
    (2.0, 1.0, 0.2, 0),
    (1.0, 0.0, 0.0, 0),
    (1e-30, 1.0, 0.0, 0),
)


def sampling(v: ExprLike, raw: bool = False) -> LoopFunc:
    inputs = [buf("x", F32, B, v), buf("numbers", F32, B, 3), buf("integers", I32, B, 2)]
    inputs += [buf("steps", I32, B), *([buf("raw", F32, B, v)] if raw else [])]
    return template("sample_tokens", inputs, [buf("token", I32, B), buf("logprob", F32, B)])


def choosing(v: ExprLike) -> LoopFunc:
    return template("greedy_tokens", [buf("x", F32, B, v)], [buf("token", I32, B)])


def settings(kinds: Sequence[tuple[float, ...]], seed: int = 0) -> list[Any]:
    """Numbers, integers and steps of rows of these kinds."""
    rng = np.random.default_rng(seed)
    seeds = rng.integers(-(2**31), 2**31, len(kinds))
    numbers = np.array([k[:3] for k in kinds], np.float32)
    integers = np.stack([[k[3] for k in kinds], seeds], axis=1).astype(np.int32)
    return [numbers, integers, rng.integers(0, 1000, len(kinds)).astype(np.int32)]


def logits(rows: int, v: int, seed: int = 0) -> Any:
    x = 3 * np.random.default_rng(seed + v).standard_normal((rows, v))
    return x.astype(np.float32)


def on_host(run: Any) -> Any:
    """A runner as `run_version` wants it."""

    def into(kernel: Any, memory: Any, scalars: Any, grid: int) -> None:
        for key, value in run(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    return into


def agrees(func: LoopFunc, arrays: list[Any], target: Target, run: Any = run_kernel) -> None:
    sizes = {"b": arrays[0].shape[0], "v": arrays[0].shape[1]}
    (version,) = schedule(func, target).versions
    with np.errstate(all="ignore"):
        want = run_loop(func, arrays, sizes)
    got = run_version(version, func, arrays, sizes, run)
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, 2e-5)


SIZES = ((1, 3), (2, 1), (255, 1), (256, 3), (257, 1), (509, 1))
SMALL_GROUPS = replace(WEBGPU, workgroup_size=16)


@pytest.mark.parametrize(("v", "rows"), SIZES)
@pytest.mark.parametrize("target", (SMALL_GROUPS, WASM), ids=lambda t: t.name)
def test_odd_sizes(target: Target, v: int, rows: int) -> None:
    known = v % 2 == 0
    kinds = [KINDS[(v + k) % len(KINDS)] for k in range(rows)]
    arrays = [logits(rows, v), *settings(kinds), *([logits(rows, v, 1)] if known else [])]
    agrees(sampling(v if known else V, raw=known), arrays, target)


@pytest.mark.parametrize(("v", "rows"), SIZES)
@pytest.mark.parametrize("target", (SMALL_GROUPS, WASM), ids=lambda t: t.name)
def test_greedy(target: Target, v: int, rows: int) -> None:
    """Of equals the first, wherever it is."""
    x = np.minimum(logits(rows, v), 4.0).round()
    agrees(choosing(v if v % 2 == 0 else V), [x], target)
    x[:] = -2
    x[:, v - 1] = 5
    agrees(choosing(V), [x], target)


@pytest.mark.parametrize("subgroup", (0, 32))
def test_whole_workgroups(subgroup: int) -> None:
    arrays = [logits(2, 300), *settings([KINDS[2], KINDS[4]])]
    agrees(sampling(300), arrays, WEBGPU, partial(run_kernel, subgroup=subgroup))


HOSTS = [(WASM, run_wasm), (WEBGPU_SOFTWARE, run_wgpu)]


@pytest.mark.parametrize(("target", "run"), HOSTS, ids=("wasm", "wgpu"))
def test_hosts(target: Target, run: Any) -> None:
    """A whole vocabulary, every kind of row."""
    v, rows = 32003, len(KINDS)
    arrays = [logits(rows, v), *settings(KINDS), logits(rows, v, 1)]
    agrees(sampling(v, raw=True), arrays, target, on_host(run))


@pytest.mark.parametrize(("target", "run"), HOSTS, ids=("wasm", "wgpu"))
def test_greedy_on_hosts(target: Target, run: Any) -> None:
    """More tokens than lavapipe lets a loop have turns."""
    x = logits(2, 150001)
    x[0, [149999, 150000]] = 99
    agrees(choosing(150001), [x], target, on_host(run))


@pytest.mark.parametrize("subgroups", (False, True))
def test_wgsl_is_valid(subgroups: bool) -> None:
    (version,) = schedule(sampling(32000, raw=True), WEBGPU).versions
    (kernel,) = version.kernels
    assert len(kernel.buffers) <= WEBGPU.storage_buffers
    device = wgpu_device()
    if device is None or (subgroups and "subgroup" not in device.features):
        pytest.skip("no WebGPU adapter with what the kernel needs")
    chosen = for_features(kernel, frozenset((SUBGROUPS,) if subgroups else ()))
    assert device.create_shader_module(code=print_wgsl(chosen)) is not None


NAN, INF = np.nan, np.inf
BROKEN = np.array(
    [
        [NAN, 1, NAN, -INF, 0.5],
        [NAN, NAN, NAN, NAN, NAN],
        [-INF, -INF, -INF, -INF, -INF],
        [1, INF, 3, INF, NAN],
        [-INF, -INF, -3, -INF, -INF],
        [2, 2, 2, 2, 2],
    ],
    np.float32,
)


@pytest.mark.parametrize("kind", (KINDS[0], KINDS[1], KINDS[2], (0.5, 0.9, 0.3, 2)))
def test_what_is_not_a_number(kind: tuple[float, ...]) -> None:
    arrays = [BROKEN, *settings([kind] * len(BROKEN))]
    for target in (WEBGPU_SOFTWARE, WASM):
        agrees(sampling(5), arrays, target)
        agrees(choosing(5), [BROKEN], target)
    token, logprob = run_loop(sampling(5), arrays, {"b": len(BROKEN)})
    assert token[0] in (1, 4) and token[3] in (1, 3)
    assert (token[1], token[2], token[4]) == (0, 0, 2)
    assert logprob[1] == logprob[2] == -INF
    np.testing.assert_allclose(logprob[3:], [-np.log(2), 0, -np.log(5)], rtol=1e-6)
    if kind[0] == 0:
        assert list(token) == [1, 0, 0, 1, 2, 0]


# What is drawn, and how often

SMALL = np.array([2.0, 1.5, 1.5, 1.0, 0.0, -1.0, -2.0, 0.5, 1.9, -0.5], np.float32)
EXPECTED = {  # (temperature, top-p, min-p, top-k): the tokens that stay
    (1.0, 1.0, 0.0, 0): range(10),
    (2.0, 1.0, 0.0, 3): (0, 8, 1, 2),  # the third and its equal
    (1.0, 0.4, 0.0, 0): (0, 8),
    (1.0, 0.6, 0.0, 4): (0, 8),  # they hold 0.61 of what top-k kept
    (1.0, 1.0, 0.3, 0): (0, 8, 1, 2, 3),
    (0.5, 0.97, 0.1, 7): (0, 8, 1, 2, 3),
}
DRAWS = 20_000
MOST = {1: 10.8, 3: 16.3, 4: 18.5, 9: 27.9}  # of chi-square by degrees of freedom, in 1 of 1,000


@pytest.mark.parametrize("by_step", (True, False), ids=("steps", "seeds"))
@pytest.mark.parametrize("kind", EXPECTED)
def test_frequencies(kind: tuple[float, ...], by_step: bool) -> None:
    """As often as probabilities say, over steps of one seed, and over seeds at one step."""
    counter, one = np.arange(DRAWS), np.full(DRAWS, 12345)
    seeds, steps = (one, counter) if by_step else (counter, one)
    numbers = np.tile(np.array(kind[:3], np.float32), (DRAWS, 1))
    integers = np.stack([np.full(DRAWS, kind[3]), seeds], axis=1).astype(np.int32)
    x = np.tile(SMALL, (DRAWS, 1))
    func, sizes = sampling(len(SMALL)), {"b": DRAWS}
    (version,) = schedule(func, WASM).versions
    arrays = [x, numbers, integers, steps.astype(np.int32)]
    token, _ = run_version(version, func, arrays, sizes, on_host(run_wasm))
    kept = sorted(EXPECTED[kind])
    weights = np.exp(SMALL[kept].astype(np.float64) / kind[0])
    expected = DRAWS * weights / weights.sum()
    found = np.bincount(token, minlength=len(SMALL))
    assert found[kept].sum() == DRAWS
    assert ((found[kept] - expected) ** 2 / expected).sum() < MOST[len(kept) - 1]


def test_neighbouring_draws_are_independent() -> None:
    """Numbers of neighbouring ids, steps and seeds, as pairs in a grid of 16 by 16 cells."""
    count = 1 << 16
    ids = uniforms(np.array([7]), np.array([3]), count + 1)[0]
    steps = uniforms(np.full(count + 1, 7), np.arange(count + 1), 1)[:, 0]
    seeds = uniforms(np.arange(count + 1), np.full(count + 1, 3), 1)[:, 0]
    for u in (ids, steps, seeds):
        assert u.min() > 0 and u.max() < 1
        cells = np.bincount((u[:-1] * 16).astype(int) * 16 + (u[1:] * 16).astype(int))
        assert ((cells - 256.0) ** 2 / 256.0).sum() < 330.5  # 255 degrees of freedom, 1 in 1,000

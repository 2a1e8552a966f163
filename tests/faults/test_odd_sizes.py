"""Odd, small and unaligned sizes, batches, head sizes (web.md C 16-20)."""

from functools import cache

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.faults.hosts import HOSTS, N, calling

BOTH = pytest.mark.parametrize("host", HOSTS)
ODD = (1, 2, 3, 5, 7, 17)
B, K, M = symbol("b"), symbol("k"), symbol("m")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@cache
def product() -> api.Executable:
    return api.compile(calling("matmul", ((B, M, K), np.float32), ((B, K, N), np.float32)))


@BOTH
def test_products_of_odd_sizes(host: str) -> None:
    """One compilation, every combination; of each batch every element is compared."""
    with product().session(host) as session:
        for k in ODD:
            for n in ODD:
                for batch, m in ((1, 1), (3, 4), (3, 33)):
                    a, b = normal(batch, m, k), normal(batch, k, n)
                    close(session.run({"x0": a, "x1": b})["y0"], a @ b)


@BOTH
@pytest.mark.parametrize("k", [1, 3, 5, 16, 17])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 65])
def test_products_with_fixed_weights(host: str, k: int, n: int) -> None:
    """Fixed inner and outer sizes choose other tiles than symbolic ones."""
    f = Function("main")
    x, w, bias = f.input("x", (M, k), F32), normal(k, n), normal(n)
    y = f.call(OPS["matmul"], x, f.constant("w", w))
    f.output("y", f.call(OPS["relu"], f.call(OPS["add"], y, f.constant("b", bias))))
    with api.compile(f.module(), fallback=host == "cpu").session(host) as session:
        for m in (1, 4, 17, 65):
            x_value = normal(m, k)
            close(session.run({"x": x_value})["y"], np.maximum(x_value @ w + bias, 0))


@BOTH
@pytest.mark.parametrize("head", [8, 40, 72, 80, 96])
def test_attention_of_odd_heads(host: str, head: int) -> None:
    """Heads that no tile divides, sequences that no tile divides, three batches of two heads."""
    length, past = symbol("s"), symbol("t")
    f = Function("main")
    q = f.input("q", (B, 2, length, head), F32)
    k, v = (f.input(name, (B, 2, past, head), F32) for name in "kv")
    turned = f.call(OPS["transpose"], k, perm=(0, 1, 3, 2))
    scores = f.call(OPS["matmul"], q, turned)
    f.output("y", f.call(OPS["matmul"], f.call(OPS["softmax"], scores, axis=-1), v))
    with api.compile(f.module(), fallback=host == "cpu").session(host) as session:
        for s, t in ((1, 9), (5, 5), (13, 17)):
            given = {"q": normal(3, 2, s, head), **{n: normal(3, 2, t, head) for n in "kv"}}
            weights = given["q"] @ given["k"].transpose(0, 1, 3, 2)
            weights = np.exp(weights - weights.max(-1, keepdims=True))
            wanted = weights / weights.sum(-1, keepdims=True) @ given["v"]
            close(session.run(given)["y"], wanted)


@BOTH
def test_padded_batch_equals_each_alone(host: str) -> None:
    """Right-padded rows with a mask: what is behind the mask has no influence (web.md C 16)."""
    f = Function("main")
    x, mask = f.input("x", (B, N, 8), F32), f.input("mask", (B, N), F32)
    scores = f.call(OPS["matmul"], x, f.call(OPS["transpose"], x, perm=(0, 2, 1)))
    away = f.call(OPS["mul"], f.call(OPS["sub"], mask, f.constant("one", np.float32(1))),
                  f.constant("much", np.float32(1e9)))  # fmt: skip
    hidden = f.call(OPS["reshape"], away, dims=(B, 1, N))
    seen = f.call(OPS["softmax"], f.call(OPS["add"], scores, hidden), axis=-1)
    f.output("y", f.call(OPS["matmul"], seen, x))
    lengths = (5, 12, 9)
    alone = [normal(1, n, 8) for n in lengths]
    padded, mask_value = np.full((3, 12, 8), 3.0, np.float32), np.zeros((3, 12), np.float32)
    for k, (n, row) in enumerate(zip(lengths, alone, strict=True)):
        padded[k, :n], mask_value[k, :n] = row, 1
    with api.compile(f.module()).session(host) as session:
        together = session.run({"x": padded, "mask": mask_value})["y"]
        for k, (n, row) in enumerate(zip(lengths, alone, strict=True)):
            ones = np.ones((1, n), np.float32)
            close(together[k : k + 1, :n], session.run({"x": row, "mask": ones})["y"])


@BOTH
def test_one_compilation_for_all_lengths(host: str) -> None:
    """['n', 's', 512] with s from 1 to 130: no kernel is made after loading (web.md C 20)."""
    s = symbol("s")
    executable = api.compile(calling("softmax", ((N, s, 512), np.float32), axis=1))
    with executable.session(host) as session:
        made = session.stats().get("pipelines")
        for n, length in ((1, 1), (3, 1), (1, 2), (3, 7), (1, 64), (3, 65), (1, 130)):
            x = normal(n, length, 512)
            e = np.exp(x - x.max(1, keepdims=True))
            close(session.run({"x0": x})["y0"], e / e.sum(1, keepdims=True))
        assert session.stats().get("pipelines") == made


@BOTH
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 3)])
def test_convolutions_of_odd_sizes(host: str, size: tuple[int, int]) -> None:
    """Three images at once, each equal to itself alone."""
    f = Function("main")
    x = f.input("x", (B, 3, symbol("h", 1), symbol("w", 1)), F32)
    weights = f.constant("w", normal(5, 3, 3, 3))
    f.output("y", f.call(OPS["conv"], x, weights, pads=(1, 1, 1, 1)))
    images = normal(3, 3, *size)
    with api.compile(f.module()).session(host) as session:
        together = session.run({"x": images})["y"]
        assert together.shape == (3, 5, *size)
        for k in range(3):
            close(together[k : k + 1], session.run({"x": images[k : k + 1]})["y"])
        wanted = OPS["conv"].reference(images, weights.data, None,
                                       **{**OPS["conv"].attrs, "pads": (1, 1, 1, 1)})  # fmt: skip
        close(together, wanted)

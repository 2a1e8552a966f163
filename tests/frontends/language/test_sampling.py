"""Sampling as part of a program: what is done to logits, in which order, and what comes out."""

from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends import nn
from edgerelax.frontends.language.sampling import (
    INTEGERS,
    NUMBERS,
    PROMPT,
    Settings,
    adjusted,
    greedy,
    sample,
    top_logprobs,
)
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I32, U32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol

B, M, V = symbol("b"), symbol("m"), 50
EXTRAS = {
    "counts": nn.Input((B, V), I32),
    "ids": nn.Input((B, M), I32),
    "values": nn.Input((B, M), F32),
    "allowed": nn.Input((B, 2), U32),
}
OFF = {"temperature": 1.0, "top_p": 1.0, "repetition": 1.0}


def module(*extras: str) -> Module:
    """A function that samples, and gives the logits that it samples from as well."""

    def forward(logits: nn.Tensor, **given: nn.Tensor) -> dict[str, nn.Tensor]:
        settings = Settings(*(given[name] for name in ("numbers", "integers", "steps")))
        more: dict[str, Any] = {k: given[k] for k in ("counts", "allowed") if k in given}
        if "ids" in given:
            more["bias"] = given["ids"], given["values"]
        token, logprob = sample(logits, settings, **more)
        x = adjusted(logits, settings, **more)
        return {"token": token, "logprob": logprob, **({} if x is logits else {"x": x})}

    inputs = {"logits": nn.Input((B, V), F32), **Settings.inputs(B)}
    return nn.trace(forward, {**inputs, **{name: EXTRAS[name] for name in extras}})


def settings(rows: int, **chosen: float) -> dict[str, np.ndarray]:
    values = {**OFF, **chosen}
    numbers, integers = ([values.get(name, 0) for name in n] for n in (NUMBERS, INTEGERS))
    return {
        "numbers": np.tile(np.array(numbers, np.float32), (rows, 1)),
        "integers": np.tile(np.array(integers, np.int32), (rows, 1)),
        "steps": np.arange(rows, dtype=np.int32),
    }


def logits(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, V)).astype(np.float32) * 2


def words(allowed: Any) -> Any:
    filled = np.zeros((len(allowed), 64), bool)
    filled[:, :V] = allowed
    return np.packbits(filled, axis=1, bitorder="little").view(np.uint32)


def test_changes_come_in_order() -> None:
    """Bias, penalties, mask; of the bias what is outside does nothing and equals add up."""
    x, rng = logits(2), np.random.default_rng(5)
    counts = rng.integers(0, 4, (2, V)).astype(np.int32)
    counts[:, ::3] = 0
    counts[:, 1::4] += PROMPT
    allowed = rng.random((2, V)) < 0.5
    ids = np.array([[3, 49, V, 2**31 - 1], [7, 7, 0, V]], np.int32)
    values = np.array([[1.5, -4, 9, 9], [1, 2, -100, 9]], np.float32)
    given = settings(2, repetition=1.5, presence=0.25, frequency=0.5)
    extras = {"counts": counts, "ids": ids, "values": values, "allowed": words(allowed)}
    found = evaluate(module(*EXTRAS), {"logits": x, **given, **extras})
    want = x.copy()
    for row in range(2):
        for token, value in zip(ids[row], values[row], strict=True):
            if token < V:
                want[row, token] += value
    want = np.where(counts > 0, np.where(want < 0, want * 1.5, want / 1.5), want)
    generated = counts % PROMPT
    want = want - 0.25 * (generated > 0) - 0.5 * generated
    want = np.where(allowed, want, -np.inf)
    np.testing.assert_allclose(found["x"], want, rtol=1e-5)
    assert allowed[np.arange(2), found["token"]].all()
    raw = x - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(found["logprob"], raw[np.arange(2), found["token"]], rtol=1e-5)


def test_compiled() -> None:
    """The program draws what the reference draws, in few launches."""
    x, rng = logits(3), np.random.default_rng(6)
    extras = {
        "counts": rng.integers(0, 3, (3, V)).astype(np.int32),
        "allowed": words(rng.random((3, V)) < 0.7),
    }
    made = module(*extras)
    executable = edgerelax.compile(made, target="cpu")
    for chosen in ({"temperature": 0.0}, {"top_p": 0.9, "frequency": 1.0}, {"top_k": 5, "seed": 9}):
        given = {"logits": x, **settings(3, **chosen), **extras}
        found, want = executable.session("cpu").run(given), evaluate(made, given)
        np.testing.assert_array_equal(found["token"], want["token"])
        np.testing.assert_allclose(found["logprob"], want["logprob"], rtol=1e-4)
    assert executable.report.launches["cpu"] == 2


def test_greedy() -> None:
    x = logits(3)
    x[1, [4, 9]] = 50
    x[2, 3] = np.nan
    inputs = {"logits": nn.Input((B, V), F32)}
    chosen = nn.trace(lambda logits: {"token": greedy(logits)}, inputs)
    executable = edgerelax.compile(chosen, target="cpu")
    token = executable.session("cpu").run({"logits": x})["token"]
    assert list(token) == [x[0].argmax(), 4, np.nanargmax(x[2])] and token.dtype == np.int32
    sampled = evaluate(module(), {"logits": x, **settings(3, temperature=0.0)})
    np.testing.assert_array_equal(token, sampled["token"])
    assert executable.report.launches["cpu"] == 1


def test_draws_hang_on_seed_and_step_alone() -> None:
    """Wherever a sequence stands in a batch, and whoever else is in it."""
    x = logits(4)
    x[3] = x[0]
    given = settings(4, seed=77)
    given["steps"] = np.array([5, 5, 6, 5], np.int32)
    together = evaluate(module(), {"logits": x, **given})["token"]
    alone = evaluate(module(), {"logits": x[3:], **{k: v[3:] for k, v in given.items()}})["token"]
    assert together[0] == together[3] == alone[0]
    many = settings(200, seed=77)
    drawn = evaluate(module(), {"logits": np.zeros((200, V), np.float32), **many})["token"]
    assert len(set(drawn)) > 40


def test_top_logprobs() -> None:
    x = logits(3)
    x[1, [6, 30]] = 9
    x[2, 8] = np.nan
    inputs = {"logits": nn.Input((B, V), F32)}
    made = nn.trace(lambda logits: dict(zip("il", top_logprobs(logits, 20), strict=True)), inputs)
    found = edgerelax.compile(made, target="cpu").session("cpu").run({"logits": x})
    clean = np.where(np.isnan(x), -np.inf, x).astype(np.float64)
    order = np.argsort(-clean, axis=1, kind="stable")[:, :20]
    logprobs = clean - np.log(np.exp(clean).sum(1, keepdims=True))
    np.testing.assert_array_equal(found["i"], order)
    np.testing.assert_allclose(found["l"], np.take_along_axis(logprobs, order, 1), rtol=1e-5)


def test_wrong_number_of_words() -> None:
    inputs = {"logits": nn.Input((B, V), F32), **Settings.inputs(B)}
    inputs["allowed"] = nn.Input((B, 1), I32)

    def forward(logits: nn.Tensor, allowed: nn.Tensor, **given: nn.Tensor) -> dict[str, nn.Tensor]:
        return {"x": adjusted(logits, Settings(**given), allowed=allowed)}

    with pytest.raises(InputError, match="1 words of allowed tokens for 50 tokens"):
        nn.trace(forward, inputs)

"""Keys moved to other positions are those that the positions give; pages that nobody sees."""

import numpy as np
import pytest

from edgerelax.frontends.language.cache import PAGE
from edgerelax.frontends.language.config import Config, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.language.storage import Kind
from edgerelax.ir.dtypes import DTYPES
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.ir.types import as_tensor
from tests.frontends.language.test_cache import OUTSIDE, tokens_of

SLOTS = 6 * PAGE
ROPES = {
    "halves": Rope((1.0, 0.3, 0.1, 0.02)),
    "neighbours, some features, with a factor": Rope((1.0, 0.3, 0.1), 1.3, interleaved=True),
    "none": None,
}
Arrays = dict[str, np.ndarray]


def model(rope: Rope | None, window: int | None = None, positions: int = 0) -> GeneralDecoder:
    config = Config(
        width=24, heads=4, groups=2, head_width=8, hidden=40, vocabulary=50, context=SLOTS,
        plan=(Plan(Attend(window=window), rope),) * 2, tied=True, positions=positions,
    )  # fmt: skip
    made = GeneralDecoder(config)
    rng = np.random.default_rng(0)
    made.load({n: rng.standard_normal(p.shape, np.float32) * 0.3 for n, p in made.parameters()})
    return made


def module(decoder: GeneralDecoder, cache: Kind = "f32") -> Module:
    return language_module(decoder, decoder.config, cache=cache)


def empty(made: Module) -> Arrays:
    """A cache, rows of logits and what was drawn."""
    sizes = {"slots": SLOTS, "rows": 1}
    func = made.funcs["step"]
    found = {}
    for value in (p for p in func.params if p.name in func.attrs["states"]):
        tensor = as_tensor(value.annotation)
        assert tensor is not None and tensor.dims is not None and tensor.dtype is not None
        dims = [d.as_int() or sizes[str(d)] for d in tensor.dims]
        found[value.name] = np.zeros(dims, DTYPES[str(tensor.dtype)].numpy)
    return found


def step(made: Module, states: Arrays, tokens: list[int], start: int, pages: list[int]) -> Arrays:
    """What the states become when tokens come that stand from `start` on."""
    at = np.arange(start, start + len(tokens), dtype=np.int32)
    slots = np.array([pages[p // PAGE] * PAGE + p % PAGE for p in at], np.int32)
    inputs = {
        "tokens": np.array([tokens], np.int32), "positions": at[None], "slots": slots[None],
        "pages": np.array([pages], np.int32), "last": np.array([len(tokens) - 1], np.int32),
        "rows": np.zeros(1, np.int32),
    }  # fmt: skip
    return evaluate(made, {**inputs, **states}, "step")


@pytest.mark.parametrize("kind,tolerance", (("f32", 1e-5), ("f16", 2e-3), ("int8", 2e-2)))
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_keys_at_other_positions(rope: Rope | None, kind: Kind, tolerance: float) -> None:
    """Two pages move back by one, one of them to another place; what it had there is untouched."""
    made, tokens = module(model(rope), kind), tokens_of(1, 2 * PAGE)
    first = step(made, empty(made), tokens, PAGE, [5, 1, 3])
    pages = {"source": [1, 3], "target": [1, 4], "by": [-PAGE, -PAGE]}
    given = {name: np.array(numbers, np.int32) for name, numbers in pages.items()}
    cache = {n: a for n, a in first.items() if n[:4] in ("keys", "valu")}
    found = evaluate(made, {**given, **cache}, "shift")
    there = step(made, empty(made), tokens, 0, [1, 4])

    def rows(states: Arrays, name: str) -> np.ndarray:
        scales = states.get(f"{name}.scales", np.ones(1, np.float32))
        return (states[name] * scales[..., None]).reshape(-1, PAGE, 2, 8)[[1, 4]]

    for name in ("keys.0", "values.0"):  # layers above saw an empty page as well
        want = rows(there, name)
        error = np.abs(rows(found, name) - want).max()
        assert error <= tolerance * np.abs(want).max()
    assert (found["keys.0"][3 * PAGE :][:PAGE] == first["keys.0"][3 * PAGE :][:PAGE]).all()


def test_learned_positions_cannot_be_moved() -> None:
    made = module(model(None, positions=SLOTS))
    assert "shift" not in made.funcs and "shift" not in made.attrs["language"]["functions"]


@pytest.mark.parametrize("window", (1, 9, PAGE, PAGE + 1, 40))
@pytest.mark.parametrize("count", (1, 5))
def test_pages_before_a_window_are_not_read(window: int, count: int) -> None:
    """They may be anything: here what is in their place is no number."""
    decoder = model(ROPES["halves"], window)
    made, tokens = module(decoder), tokens_of(2, SLOTS)
    assert made.attrs["language"]["window"] == decoder.window == window
    pages, states = [4, 0, 2, 5, 1, 3], empty(made)
    start = SLOTS - PAGE - 3
    states = step(made, states, tokens[:start], 0, pages)
    wanted = step(made, states, tokens[start : start + count], start, pages)["last_logits"]
    gone = max(0, start - window + 1) // PAGE
    assert gone or window == 40
    for page in pages[:gone]:
        for name, array in states.items():
            if name[:4] in ("keys", "valu"):
                array[page * PAGE : (page + 1) * PAGE] = np.nan
    left = [OUTSIDE // PAGE] * gone + pages[gone:]
    found = step(made, states, tokens[start : start + count], start, left)["last_logits"]
    np.testing.assert_array_equal(found, wanted)

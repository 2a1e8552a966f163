"""Forms and texts do not depend on what a process met first."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.sym import Atom, axis, parse, prove_le, symbol

TEXTS = 60
ROOT = Path(__file__).parents[2]


def expressions() -> list[str]:
    """Expressions of all kinds as Python text, over the names that `texts` defines."""
    rng = random.Random(7)
    names = ["n", "m", "q", "r", "i", "j"]

    def one(depth: int) -> str:
        if depth == 0:
            return rng.choice([*names, str(rng.randint(-3, 9))])
        a, b = one(depth - 1), one(rng.randrange(depth))
        return rng.choice(
            [
                f"({a} + {b})",
                f"({a} - {b})",
                f"({a} * {b})",
                f"({a} // ({b} * {b} + 1))",
                f"({a} % {rng.randint(2, 9)})",
                f"(({a} * 4) // 8)",
                f"min({a}, {b})",
                f"max({a}, {b})",
                f"select({a} >= {b}, {b}, {a})",
            ]
        )

    return [one(rng.randint(1, 3)) for _ in range(TEXTS)]


def texts(order: list[int]) -> dict[int, tuple[str, bool | None]]:
    """Of each expression, in that order, its text and whether it is proved to be at most m."""
    n, m = symbol("n"), symbol("m", 1)
    scope = {
        "n": n, "m": m, "q": symbol("q", 0, None, 4), "r": symbol("r", -5, 9, 8),
        "i": axis("i", n), "j": axis("j", 4 * m),
    }  # fmt: skip
    sources = expressions()
    found: dict[int, tuple[str, bool | None]] = {}
    for k in order:
        expr = parse(sources[k], scope.__getitem__)
        found[k] = (str(expr), prove_le(expr, m))
    return found


def shuffled(seed: int) -> list[int]:
    order = list(range(TEXTS))
    random.Random(seed).shuffle(order)
    return order


def texts_of_a_process(order: list[int]) -> dict[int, tuple[str, bool | None]]:
    code = "import json, sys; from tests.sym.test_order import texts; "
    code += "print(json.dumps(list(texts(json.loads(sys.argv[1])).items())))"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(order)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {k: (text, proved) for k, (text, proved) in json.loads(done.stdout)}


@pytest.mark.parametrize("seed", [1, 2])
def test_two_processes_agree(seed: int) -> None:
    first, second = texts_of_a_process(list(range(TEXTS))), texts_of_a_process(shuffled(seed))
    assert first == second
    assert len({text for text, _ in first.values()}) > TEXTS // 2


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.permutations("zayxb"))
def test_terms_and_factors_stand_by_name(names: list[str]) -> None:
    sizes = {name: symbol(f"order_{name}") for name in names}
    total, whole = symbol("order_0"), symbol("order_0")
    for name in names:
        total, whole = total + sizes[name], whole * sizes[name]
    assert str(total).split(" + ") == sorted(str(total).split(" + "))
    assert str(whole).split("*") == sorted(str(whole).split("*"))
    assert str(total + whole * 2).startswith("2*order_0*")


def test_symbols_of_one_name_are_ordered_by_their_bounds() -> None:
    wide, narrow = symbol("same_name"), symbol("same_name", 0, 9)
    atoms: list[Atom | None] = [wide.atom, narrow.atom]
    orders = [a.order for a in atoms if a is not None]
    assert orders[1] < orders[0] or orders[0] < orders[1]
    assert wide * narrow is narrow * wide

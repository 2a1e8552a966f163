"""Random integer expressions as plain trees, and what they are worth, for comparison with `sym`."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    Opaque,
    Symbol,
    axis,
    ceildiv,
    eq,
    ge,
    gt,
    le,
    lt,
    maximum,
    minimum,
    select,
    symbol,
)

Env = Mapping[Atom, int]

N = symbol("n")
M = symbol("m", 1)
P = symbol("p", -3, 4)
Q = symbol("q", 0, None, 4)
R = symbol("r", -5, 9, 3)
W = symbol("w", 2, 6)
U = symbol("u", -8, -1)
I = axis("i", 4)  # noqa: E741
J = axis("j", N)
K = axis("k", M + 1)
L = axis("l", N - 2)
T = axis("t", (N + 3) // 4)
O = Opaque("o", 0, N).expr  # noqa: E741
A = Opaque("a", -2, 5).expr
B = Opaque("b").expr

LEAVES = (N, M, P, Q, R, W, U, I, J, K, L, T, O, A, B)
ARITHMETIC = ("+", "-", "*", "//", "%", "ceildiv", "min", "max")
CONDITIONS = {"ge": ge, "gt": gt, "le": le, "lt": lt, "eq": eq}


@dataclass(frozen=True)
class Tree:
    """An operator and its operands; `leaf` holds an int or one of LEAVES."""

    op: str
    args: tuple["Tree", ...] = ()
    leaf: int | Expr = 0

    def __repr__(self) -> str:
        match self.op:
            case "leaf":
                return str(self.leaf)
            case "+" | "-" | "*" | "//" | "%":
                return f"({self.args[0]} {self.op} {self.args[1]})"
        return f"{self.op}({', '.join(map(repr, self.args))})"


def _node(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    pairs = st.tuples(children, children)
    return st.one_of(
        st.builds(Tree, st.sampled_from(ARITHMETIC), pairs),
        st.builds(lambda x, k: Tree("//", (x, k)), children, divisors),
        st.builds(lambda x, k: Tree("%", (x, k)), children, divisors),
        st.builds(
            Tree,
            st.sampled_from([f"select {name}" for name in CONDITIONS]),
            st.tuples(children, children, children, children),
        ),
    )


def _leaf(value: int | Expr) -> Tree:
    return Tree("leaf", leaf=value)


divisors = st.one_of(
    st.sampled_from([2, 3, 4, 6, 8, 12]).map(_leaf), st.sampled_from([N, M, W, M + 1]).map(_leaf)
)
leaves = st.one_of(st.sampled_from(LEAVES).map(_leaf), st.integers(-9, 17).map(_leaf))
trees = st.recursive(leaves, _node, max_leaves=9)


def build(tree: Tree) -> Expr:
    """The tree through the operators under test."""
    if tree.op == "leaf":
        return minimum(tree.leaf)
    args = [build(a) for a in tree.args]
    match tree.op.split():
        case ["+"]:
            return args[0] + args[1]
        case ["-"]:
            return args[0] - args[1]
        case ["*"]:
            return args[0] * args[1]
        case ["//"]:
            return args[0] // args[1]
        case ["%"]:
            return args[0] % args[1]
        case ["ceildiv"]:
            return ceildiv(args[0], args[1])
        case ["min"]:
            return minimum(args[0], args[1])
        case ["max"]:
            return maximum(args[0], args[1])
        case ["select", kind]:
            return select(CONDITIONS[kind](args[0], args[1]), args[2], args[3])
    raise AssertionError(tree.op)


def value(tree: Tree, env: Env) -> int:
    """The tree by Python's own operators, all of it: ZeroDivisionError wherever a divisor is 0."""
    if tree.op == "leaf":
        return tree.leaf if isinstance(tree.leaf, int) else tree.leaf.eval(env)
    args = [value(a, env) for a in tree.args]
    a, b = args[:2]
    match tree.op.split():
        case ["+"]:
            return a + b
        case ["-"]:
            return a - b
        case ["*"]:
            return a * b
        case ["//"]:
            return a // b
        case ["%"]:
            return a % b
        case ["ceildiv"]:
            return (a + b - 1) // b
        case ["min"]:
            return min(a, b)
        case ["max"]:
            return max(a, b)
        case ["select", kind]:
            holds = {"ge": a >= b, "gt": a > b, "le": a <= b, "lt": a < b, "eq": a == b}
            return args[2] if holds[kind] else args[3]
    raise AssertionError(tree.op)


def assignments(*exprs: Expr, count: int = 40, seed: int = 0) -> Iterator[dict[Atom, int]]:
    """Values within the bounds for the atoms of these: small and random, axes inside extents."""
    wanted = free_atoms(*exprs)
    rng = random.Random(seed)
    for turn in range(count):
        env: dict[Atom, int] = {}
        if _assign(wanted, env, rng, 3 if turn % 3 else 12):
            yield env


def every_assignment(*exprs: Expr, span: int = 6) -> Iterator[dict[Atom, int]]:
    """All values of symbols up to `span` above the lower bound, and of axes and opaque atoms."""
    yield from _extend(list(free_atoms(*exprs)), {}, span)


def free_atoms(*exprs: Expr) -> dict[Atom, None]:
    """Atoms that need a value, in an order in which each is after those that bound it."""
    found: dict[Atom, None] = {}

    def visit(expr: Expr | None) -> None:
        if expr is None:
            return
        for atom in sorted(expr.atoms(), key=lambda a: a.order):
            match atom:
                case Axis():
                    visit(atom.extent)
                case Opaque():
                    visit(atom.lo)
                    visit(atom.hi)
                case Symbol():
                    pass
                case _:
                    continue
            found.setdefault(atom)

    for expr in exprs:
        visit(expr)
    return found


def _range(atom: Atom, env: Env, span: int) -> range:
    match atom:
        case Symbol():
            m = atom.multiple_of
            low = -(-atom.lo // m) * m
            high = low + span * m if atom.hi is None else min(atom.hi, low + max(span * m, 9))
            return range(low, high + 1, m)
        case Axis():
            return range(atom.extent.eval(env))
        case Opaque():
            low = -span if atom.lo is None else atom.lo.eval(env)
            high = span if atom.hi is None else atom.hi.eval(env)
            return range(low, high + 1)
    raise AssertionError(atom)


def _assign(
    wanted: Mapping[Atom, None], env: dict[Atom, int], rng: random.Random, span: int
) -> bool:
    for atom in wanted:
        values = _range(atom, env, span)
        if not values:
            return False
        env[atom] = rng.choice((values[0], values[-1], rng.choice(values)))
    return True


def _extend(left: list[Atom], env: dict[Atom, int], span: int) -> Iterator[dict[Atom, int]]:
    if not left:
        yield dict(env)
        return
    for number in _range(left[0], env, span):
        yield from _extend(left[1:], {**env, left[0]: number}, span)


def atom_of(expr: Expr) -> Atom:
    """The atom that an expression is."""
    atom = expr.atom
    assert atom is not None
    return atom

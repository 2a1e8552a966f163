"""Patterns over operator calls: a tree of operators with named holes, and where a block fits it.

    x, w = hole("x"), hole("w", constant=True)
    dense = op("relu", op("add", op("matmul", x, w), hole("bias")))

A pattern used twice, hole or operator, stands for one value: `op("mul", x, op("sigmoid", x))`.
Operands of operators that commute fit in either order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgerelax.ir.graph import Binding, Block, Call, Constant, Value


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """Any value, or any constant; an operand of what the match becomes."""

    name: str
    constant: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A constant whose every element is this number, as its dtype rounds it."""

    value: float


@dataclass(frozen=True, slots=True, eq=False)
class OpPattern:
    """A call of one of these operators, whose attributes have at least these values.

    None stands for an operand that is absent, as do operands at the end that are not given.
    """

    names: tuple[str, ...]
    args: tuple["Pattern | None", ...]
    attrs: Mapping[str, Any]


Pattern = Hole | Number | OpPattern


def hole(name: str, *, constant: bool = False) -> Hole:
    """A value by name; `constant` asks for one that is known at compile time."""
    return Hole(name, constant)


def number(value: float) -> Number:
    """A constant of that value."""
    return Number(value)


def op(names: str, *args: Pattern | None, **attrs: Any) -> OpPattern:
    """A call of an operator, or of any of several: `op("relu | tanh", x)`."""
    return OpPattern(tuple(n.strip() for n in names.split("|")), args, attrs)


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern fits: `match["x"]` is the value of hole x."""

    root: Binding
    values: Mapping[Hole, Value]
    bindings: Mapping[OpPattern, Binding]
    by_name: Mapping[str, Value] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        return self.by_name[name]

    def attrs(self, name: str) -> Mapping[str, Any]:
        """The attributes of the matched call of that operator. Raises KeyError for none."""
        for binding in self.bindings.values():
            assert isinstance(binding.value, Call)
            if binding.value.op.name == name:
                return binding.value.attrs
        raise KeyError(f"the pattern matched no {name}")


def holes(pattern: Pattern) -> tuple[Hole, ...]:
    """The holes of a pattern, in the order in which it names them first."""
    return tuple(p for p in _parts(pattern) if isinstance(p, Hole))


def size(pattern: Pattern) -> int:
    """How many calls it takes the place of."""
    return sum(isinstance(p, OpPattern) for p in _parts(pattern))


def _parts(pattern: Pattern) -> dict[Pattern, None]:
    """A pattern and all in it, each once."""
    found: dict[Pattern, None] = {pattern: None}
    for arg in pattern.args if isinstance(pattern, OpPattern) else ():
        if arg is not None:
            found |= {p: None for p in _parts(arg) if p not in found}
    return found


def matches(pattern: OpPattern, block: Block) -> Iterator[Match]:
    """Every call of the block at which the pattern fits, calls of this block alone, in order."""
    matcher = _Matcher({b.var: b for b in block.bindings})
    names = {h.name: h for h in holes(pattern)}
    for binding in block.bindings:
        found = next(matcher.fit(pattern, binding.var, {}), None)
        if found is None:
            continue
        values = {p: v for p, v in found.items() if isinstance(p, Hole)}
        calls = {p: matcher.bindings[v] for p, v in found.items() if isinstance(p, OpPattern)}
        yield Match(binding, values, calls, {n: values[h] for n, h in names.items()})


Found = Mapping[Pattern, Value]


@dataclass(frozen=True, slots=True)
class _Matcher:
    bindings: Mapping[Value, Binding]

    def fit(self, pattern: Pattern, value: Value, found: Found) -> Iterator[Found]:
        """Every way in which a value fits, given what is found already."""
        if pattern in found:
            if found[pattern] is value:
                yield found
            return
        match pattern:
            case Hole(constant=constant):
                if isinstance(value, Constant) or not constant:
                    yield {**found, pattern: value}
            case Number(value=wanted):
                if isinstance(value, Constant) and _is_number(value, wanted):
                    yield {**found, pattern: value}
            case OpPattern():
                binding = self.bindings.get(value)
                if binding is None or not isinstance(binding.value, Call):
                    return
                call = binding.value
                if call.op.name in pattern.names and _has(call.attrs, pattern.attrs):
                    yield from self._operands(pattern, call, {**found, pattern: value})

    def _operands(self, pattern: OpPattern, call: Call, found: Found) -> Iterator[Found]:
        wanted = pattern.args
        count = max(len(wanted), len(call.args))
        given = (*call.args, *(None for _ in range(count - len(call.args))))
        wanted = (*wanted, *(None for _ in range(count - len(wanted))))
        orders = [given]
        if call.op.commutative and count == 2:
            orders.append(given[::-1])
        for order in orders:
            yield from self._all(list(zip(wanted, order, strict=True)), found)

    def _all(
        self, pairs: list[tuple[Pattern | None, Value | None]], found: Found
    ) -> Iterator[Found]:
        if not pairs:
            yield found
            return
        (pattern, value), rest = pairs[0], pairs[1:]
        if pattern is None or value is None:
            if pattern is None and value is None:
                yield from self._all(rest, found)
            return
        for fitting in self.fit(pattern, value, found):
            yield from self._all(rest, fitting)


def _has(attrs: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(k in attrs and attrs[k] == v for k, v in wanted.items())


def _is_number(constant: Constant, wanted: float) -> bool:
    data = constant.data
    if data.size == 0 or data.dtype.kind not in "fiu":
        return False
    return bool(np.all(data == np.asarray(wanted).astype(data.dtype)))

"""Integer expressions in canonical form: polynomials over interned atoms (design 3).

Equal expressions are one object: equality is identity, and memo tables by expression are exact.
An atom is a symbol, a loop axis, a floor division, min, max, a selection, or a value known by
bounds only. `a % b` is sugar for `a - b*(a//b)`; the printer recognises it again. Division by zero
has no value: what is simplified under `//` holds wherever the divisor is not zero.
"""

import numbers
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol, Union, runtime_checkable

Monomial = tuple["Atom", ...]
Order = tuple[Any, ...]
_serial = count()


@runtime_checkable
class Payload(Protocol):
    """What an Opaque may carry: something with index expressions of its own."""

    def subs(self, mapping: Mapping["Atom", "ExprLike"]) -> Any: ...

    def symbols(self) -> frozenset["Symbol"]: ...

    def axes(self) -> frozenset["Axis"]: ...


class Atom:
    """A factor of a monomial. Interned.

    `order` sorts atoms by kind and content, so that forms and texts are the same in every process.
    """

    __slots__ = ("__weakref__", "_expr", "key", "order")
    _known: ClassVar[dict[tuple[Any, ...], "Atom"]] = {}
    key: tuple[Any, ...]
    order: Order
    exact: int = 0
    _expr: "Expr | None"

    @classmethod
    def _intern(cls, *key: Any) -> tuple[Any, bool]:
        """The atom of that key, and whether it is new (its fields are then to be set)."""
        full = (cls, *key)
        found = Atom._known.get(full)
        if found is not None:
            return found, False
        atom = object.__new__(cls)
        atom.key, atom._expr = full, None
        Atom._known[full] = atom
        return atom, True

    @property
    def expr(self) -> "Expr":
        if self._expr is None:
            self._expr = _make({(self,): 1})
        return self._expr

    def parts(self) -> tuple["Expr", ...]:
        """Expressions inside."""
        return ()

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping["Atom", "ExprLike"]) -> "Expr":
        """The same function of other parts, simplified."""
        return self.expr

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.key[1:])

    def __repr__(self) -> str:
        return str(self)

    def __add__(self, other: "ExprLike") -> "Expr":
        return self.expr + other

    __radd__ = __add__

    def __sub__(self, other: "ExprLike") -> "Expr":
        return self.expr - other

    def __rsub__(self, other: "ExprLike") -> "Expr":
        return as_expr(other) - self.expr

    def __mul__(self, other: "ExprLike") -> "Expr":
        return self.expr * other

    __rmul__ = __mul__

    def __floordiv__(self, other: "ExprLike") -> "Expr":
        return self.expr // other

    def __rfloordiv__(self, other: "ExprLike") -> "Expr":
        return as_expr(other) // self.expr

    def __mod__(self, other: "ExprLike") -> "Expr":
        return self.expr % other

    def __rmod__(self, other: "ExprLike") -> "Expr":
        return as_expr(other) % self.expr

    def __neg__(self) -> "Expr":
        return -self.expr


class Symbol(Atom):
    """A named size with bounds that hold from the moment it exists. Equal by value."""

    __slots__ = ("hi", "lo", "multiple_of", "name")
    name: str
    lo: int
    hi: int | None
    multiple_of: int

    def __new__(
        cls, name: str, lo: int = 0, hi: int | None = None, multiple_of: int = 1
    ) -> "Symbol":
        if hi is not None and hi < lo:
            raise ValueError(f"symbol {name}: the upper bound {hi} is below the lower bound {lo}")
        if multiple_of < 1:
            raise ValueError(f"symbol {name}: multiple_of is {multiple_of}, not at least 1")
        atom, new = cls._intern(name, lo, hi, multiple_of)
        if new:
            atom.name, atom.lo, atom.hi, atom.multiple_of = name, lo, hi, multiple_of
            atom.order = (0, name, lo, hi is None, hi or 0, multiple_of)
        found: Symbol = atom
        return found

    def __str__(self) -> str:
        return self.name


class Axis(Atom):
    """A loop axis: 0 <= axis < extent."""

    __slots__ = ("extent", "name")
    name: str
    extent: "Expr"

    def __new__(cls, name: str, extent: "ExprLike") -> "Axis":
        size = as_expr(extent)
        atom, new = cls._intern(name, size)
        if new:
            atom.name, atom.extent = name, size
            atom.order = (1, name, size.order)
        found: Axis = atom
        return found

    def __str__(self) -> str:
        return self.name


class FloorDiv(Atom):
    """num // den, rounded down. Built by `//` only, which simplifies first.

    `exact` is the divisor where num is an atom and always a multiple of it; else 0.
    """

    __slots__ = ("den", "exact", "num")
    num: "Expr"
    den: "Expr"
    exact: int

    def __new__(cls, num: "Expr", den: "Expr") -> "FloorDiv":
        atom, new = cls._intern(num, den)
        if new:
            from edgerelax.sym.bounds import divisible

            atom.num, atom.den = num, den
            atom.order = (3, num.order, den.order)
            k = den.as_int() or 0
            atom.exact = k if k and num.atom is not None and divisible(num, k) else 0
        found: FloorDiv = atom
        return found

    def parts(self) -> tuple["Expr", ...]:
        return (self.num, self.den)

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        return parts[0] // parts[1]

    def __str__(self) -> str:
        return f"{_factor(self.num)}//{_factor(self.den)}"


class _Extreme(Atom):
    __slots__ = ("args",)
    args: tuple["Expr", ...]
    word: ClassVar[str]
    rank: ClassVar[int]

    def __new__(cls, args: tuple["Expr", ...]) -> "_Extreme":
        atom, new = cls._intern(args)
        if new:
            atom.args = args
            atom.order = (cls.rank, *(a.order for a in args))
        found: _Extreme = atom
        return found

    def parts(self) -> tuple["Expr", ...]:
        return self.args

    def __str__(self) -> str:
        return f"{self.word}({', '.join(map(str, self.args))})"


class Min(_Extreme):
    """The least of several. Built by `minimum`."""

    __slots__ = ()
    word = "min"
    rank = 4

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        from edgerelax.sym.choice import minimum

        return minimum(*parts)


class Max(_Extreme):
    """The greatest of several. Built by `maximum`."""

    __slots__ = ()
    word = "max"
    rank = 5

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        from edgerelax.sym.choice import maximum

        return maximum(*parts)


class Cond:
    """A condition on an expression: `ge` is expr >= 0, `eq` is expr == 0."""

    __slots__ = ("expr", "kind")

    def __init__(self, kind: Literal["ge", "eq"], expr: "Expr") -> None:
        self.kind: Literal["ge", "eq"] = kind
        self.expr = expr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cond) and (self.kind, self.expr) == (other.kind, other.expr)

    def __hash__(self) -> int:
        return hash((self.kind, self.expr))

    def eval(self, env: Mapping[Any, int]) -> bool:
        value = self.expr.eval(env)
        return value >= 0 if self.kind == "ge" else value == 0

    def __str__(self) -> str:
        return f"{self.expr} {'>=' if self.kind == 'ge' else '=='} 0"

    __repr__ = __str__


class Select(Atom):
    """`then` where the condition holds, else `other`. Built by `select`."""

    __slots__ = ("cond", "other", "then")
    cond: Cond
    then: "Expr"
    other: "Expr"

    def __new__(cls, cond: Cond, then: "Expr", other: "Expr") -> "Select":
        atom, new = cls._intern(cond, then, other)
        if new:
            atom.cond, atom.then, atom.other = cond, then, other
            atom.order = (6, cond.kind, cond.expr.order, then.order, other.order)
        found: Select = atom
        return found

    def parts(self) -> tuple["Expr", ...]:
        return (self.cond.expr, self.then, self.other)

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        from edgerelax.sym.choice import select

        return select(Cond(self.cond.kind, parts[0]), parts[1], parts[2])

    def __str__(self) -> str:
        return f"select({self.cond}, {self.then}, {self.other})"


class Opaque(Atom):
    """A value known by bounds only (None: unbounded), such as one gathered from memory."""

    __slots__ = ("hi", "lo", "payload")
    payload: Any
    lo: "Expr | None"
    hi: "Expr | None"

    def __new__(
        cls, payload: Any, lo: "ExprLike | None" = None, hi: "ExprLike | None" = None
    ) -> "Opaque":
        low = None if lo is None else as_expr(lo)
        high = None if hi is None else as_expr(hi)
        atom, new = cls._intern(payload, low, high)
        if new:
            atom.payload, atom.lo, atom.hi = payload, low, high
            ends = tuple(() if e is None else e.order for e in (low, high))
            # payloads may differ and read the same: then the first met stands first
            atom.order = (2, str(payload), *ends, next(_serial))
        found: Opaque = atom
        return found

    def rebuild(self, parts: tuple["Expr", ...], mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        payload = self.payload
        if isinstance(payload, Payload):
            payload = payload.subs(mapping)
        low = None if self.lo is None else self.lo.subs(mapping)
        high = None if self.hi is None else self.hi.subs(mapping)
        return Opaque(payload, low, high).expr

    def __str__(self) -> str:
        return str(self.payload)


class Expr:
    """A canonical polynomial: integer coefficients of monomials. Interned: equal is identical."""

    __slots__ = (
        "_atoms", "_axes", "_has_opaque", "_order", "_sorted", "_symbols", "_terms", "bounds_memo",
    )  # fmt: skip
    _terms: dict[Monomial, int]
    _sorted: tuple[tuple[int, Monomial], ...] | None
    _atoms: frozenset[Atom] | None
    _order: Order | None
    _has_opaque: bool | None
    _symbols: frozenset[Symbol] | None
    _axes: frozenset[Axis] | None
    bounds_memo: tuple[int | float, int | float] | None  # for bounds.py
    _known: ClassVar[dict[frozenset[tuple[Monomial, int]], "Expr"]] = {}

    def as_int(self) -> int | None:
        """The value, if it is the same for all sizes."""
        if not self._terms:
            return 0
        return self._terms.get(()) if len(self._terms) == 1 else None

    @property
    def constant(self) -> int:
        """The term without atoms."""
        return self._terms.get((), 0)

    @property
    def is_const(self) -> bool:
        return self.as_int() is not None

    @property
    def atom(self) -> Atom | None:
        """The atom, if the expression is just one."""
        if len(self._terms) == 1:
            ((monomial, k),) = self._terms.items()
            if k == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def terms(self) -> tuple[tuple[int, Monomial], ...]:
        """(coefficient, atoms) of each term, those of highest degree first, the constant last."""
        if self._sorted is None:
            ordered = sorted(self._terms, key=_term_order)
            self._sorted = tuple((self._terms[m], m) for m in ordered)
        return self._sorted

    @property
    def order(self) -> Order:
        """Sorts expressions by content: by their terms."""
        if self._order is None:
            self._order = tuple((*_term_order(m), k) for k, m in self.terms())
        return self._order

    def atoms(self) -> frozenset[Atom]:
        """All atoms, at any depth."""
        if self._atoms is None:
            found: set[Atom] = set()
            for monomial in self._terms:
                for atom in monomial:
                    if atom not in found:
                        found.add(atom)
                        for part in atom.parts():
                            found |= part.atoms()
            self._atoms = frozenset(found)
        return self._atoms

    @property
    def has_opaque(self) -> bool:
        """Whether an opaque value stands in it, at any depth."""
        if self._has_opaque is None:
            self._has_opaque = any(isinstance(atom, Opaque) for atom in self.atoms())
        return self._has_opaque

    def symbols(self) -> frozenset[Symbol]:
        """All symbols, at any depth, payloads included, extents of axes not."""
        if self._symbols is None:
            own = frozenset(a for a in self.atoms() if isinstance(a, Symbol))
            self._symbols = own.union(*(p.symbols() for p in self._payloads()))
        return self._symbols

    def axes(self) -> frozenset[Axis]:
        """All axes, at any depth, payloads included."""
        if self._axes is None:
            own = frozenset(a for a in self.atoms() if isinstance(a, Axis))
            self._axes = own.union(*(p.axes() for p in self._payloads()))
        return self._axes

    def _payloads(self) -> Iterator[Payload]:
        for atom in self.atoms() if self.has_opaque else ():
            if isinstance(atom, Opaque):
                if isinstance(atom.payload, Payload):
                    yield atom.payload
                for bound in (atom.lo, atom.hi):
                    if bound is not None:
                        yield bound

    def subs(self, mapping: Mapping[Atom, "ExprLike"]) -> "Expr":
        """Replace atoms at any depth and simplify."""
        from edgerelax.sym.substitute import substitute

        return substitute(self, mapping)

    def eval(self, env: Mapping[Any, int]) -> int:
        """The value where each symbol and axis (by atom or by name) is given.

        Raises KeyError for a missing one, ZeroDivisionError naming the expression.
        """
        from edgerelax.sym.evaluate import evaluate

        return evaluate(self, env, {})

    def __add__(self, other: "ExprLike") -> "Expr":
        return _sum(self, as_expr(other))

    __radd__ = __add__

    def __neg__(self) -> "Expr":
        return _make({m: -k for m, k in self._terms.items()})

    def __sub__(self, other: "ExprLike") -> "Expr":
        return _difference(self, as_expr(other))

    def __rsub__(self, other: "ExprLike") -> "Expr":
        return _difference(as_expr(other), self)

    def __mul__(self, other: "ExprLike") -> "Expr":
        return _product(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: "ExprLike") -> "Expr":
        from edgerelax.sym.divide import floordiv

        return floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: "ExprLike") -> "Expr":
        return as_expr(other) // self

    def __mod__(self, other: "ExprLike") -> "Expr":
        divisor = as_expr(other)
        return self - divisor * (self // divisor)

    def __rmod__(self, other: "ExprLike") -> "Expr":
        return as_expr(other) % self

    def __str__(self) -> str:
        from edgerelax.sym.text import to_text

        return to_text(self)

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        return (_make, (self._terms,))


ExprLike = Union[Expr, Atom, int, "numbers.Integral"]


def as_expr(value: ExprLike) -> Expr:
    """An expression of an int, a numpy integer, an atom or an expression."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Atom):
        return value.expr
    if isinstance(value, int | numbers.Integral):
        return _constant(int(value))
    raise TypeError(f"{value!r} ({type(value).__name__}) is no integer expression")


def symbol(name: str, lo: int = 0, hi: int | None = None, multiple_of: int = 1) -> Expr:
    """A named size as an expression."""
    return Symbol(name, lo, hi, multiple_of).expr


def axis(name: str, extent: ExprLike) -> Expr:
    """A loop axis as an expression."""
    return Axis(name, extent).expr


def product(factors: Iterable[ExprLike]) -> Expr:
    """The product of all; 1 for none."""
    out = as_expr(1)
    for factor in factors:
        out = out * factor
    return out


def _make(terms: dict[Monomial, int]) -> Expr:
    """Intern a polynomial. The dict is the expression's from here on."""
    key = frozenset(terms.items())
    found = Expr._known.get(key)
    if found is None:
        found = Expr._known[key] = _reduced(terms) or _new(terms)
    return found


def _reduced(terms: dict[Monomial, int]) -> Expr | None:
    """The canonical form of what has zero coefficients or exact divisions."""
    if 0 in terms.values():
        return _make({m: k for m, k in terms.items() if k})
    if any(atom.exact for monomial in terms for atom in monomial):
        from edgerelax.sym.exact import canonical

        found = canonical(terms)
        return None if found == terms else _make(found)
    return None


def _new(terms: dict[Monomial, int]) -> Expr:
    expr = object.__new__(Expr)
    expr._terms = terms
    expr._sorted = expr._atoms = expr._symbols = expr._axes = None
    expr._order = expr._has_opaque = None
    expr.bounds_memo = None
    return expr


_order = attrgetter("order")


def joined(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    if not (a and b) or a[-1].order <= b[0].order:
        return a + b
    return product_of(a + b)


def product_of(atoms: Iterable[Atom]) -> Monomial:
    """The monomial of those factors."""
    return tuple(sorted(atoms, key=_order))


def _term_order(monomial: Monomial) -> tuple[int, Order]:
    return (-len(monomial), tuple(a.order for a in monomial))


MEMO = 1 << 16  # results of each operation to keep
_constant = lru_cache(MEMO)(lambda value: _make({(): value}))


@lru_cache(MEMO)
def _sum(a: Expr, b: Expr) -> Expr:
    if len(a._terms) < len(b._terms):
        a, b = b, a
    out = dict(a._terms)
    for monomial, k in b._terms.items():
        out[monomial] = out.get(monomial, 0) + k
    return _make(out)


@lru_cache(MEMO)
def _difference(a: Expr, b: Expr) -> Expr:
    out = dict(a._terms)
    for monomial, k in b._terms.items():
        out[monomial] = out.get(monomial, 0) - k
    return _make(out)


@lru_cache(MEMO)
def _product(a: Expr, b: Expr) -> Expr:
    out: dict[Monomial, int] = {}
    for left, i in a._terms.items():
        for right, j in b._terms.items():
            monomial = joined(left, right)
            out[monomial] = out.get(monomial, 0) + i * j
    return _make(out)


def _factor(expr: Expr) -> str:
    """Text that may stand beside `*` and `//`."""
    text = str(expr)
    value = expr.as_int()
    simple = value >= 0 if value is not None else expr.atom is not None
    return text if simple and not isinstance(expr.atom, FloorDiv) else f"({text})"

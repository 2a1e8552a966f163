"""What attention kernels read and write: a template's parameters as expressions over axes."""

from dataclasses import dataclass

from edgerelax.ir.dtypes import F32
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Load, Scalar, cast, constant, gather, op, select
from edgerelax.schedule.index import is_one, numel, stride_of
from edgerelax.schedule.strategies.templates.grids import axes_over
from edgerelax.sym import Axis, Expr, as_expr, divisible


@dataclass(frozen=True, slots=True)
class Problem:
    """A template's parameters, with an axis for each batch dim of its views."""

    template: Template
    batch: tuple[Axis, ...]
    queries: Expr
    keys: Expr
    width: int
    depth: int

    @classmethod
    def of(cls, template: Template) -> "Problem":
        queries, keys, *widths = template.params["sizes"]
        width, depth = (size.as_int() for size in widths)
        assert width is not None and depth is not None, "widths are known"
        batch = axes_over(template.params["batch"], "b")
        return cls(template, batch, queries, keys, width, depth)

    @property
    def out(self) -> Buffer:
        """The result as a flat buffer."""
        return _flat(self.template.outputs[0])

    def place(self, view: int, row: Axis, column: Axis) -> Expr:
        """The flat index of an element of a view (-1: the result's) in the bound batch."""
        offset, *strides = self.template.params["views"][view]
        axes = (*self.batch, row, column)
        return sum((s * a for s, a in zip(strides, axes, strict=True)), as_expr(offset))

    def load(self, operand: int, row: Axis, column: Axis, named: Axis | None = None) -> Load:
        """An element of q, k, v (0, 1, 2) or of another operand; in a row that a table named."""
        place = self.place(operand, row, column)
        if named is not None:
            place = place + named * self.tables[operand][1]
        return _flat(self.template.inputs[operand])[place]

    @property
    def tables(self) -> dict[int, tuple[int, int]]:
        """By operand that is read in rows: which of the others names them, and a row's size."""
        params = self.template.params
        found = {n: table for n, table in enumerate(params["tables"], 1) if table}
        return found | {s[0] + 3: (s[1], s[2]) for s in params["scales"] if len(s) > 1}

    def row(self, operand: int, key: Axis) -> Expr | None:
        """The number of the row that a table names for a key, in an operand."""
        table = self.tables.get(operand)
        if table is None:
            return None
        return gather(self.load(table[0] + 3, self.any_query, key), self.row_count(operand))

    def row_count(self, operand: int) -> Expr:
        """How many rows there are to name."""
        return numel(self.template.inputs[operand]) // as_expr(self.tables[operand][1])

    def scale(self, operand: int) -> int | None:
        """The operand that has what keys (operand 1) or values (2) are multiplied by."""
        scale = self.template.params["scales"][operand - 1]
        return scale[0] + 3 if scale else None

    @property
    def any_query(self) -> Axis:
        """Stands for a query where all are the same: its stride is 0."""
        return Axis("q", self.queries)

    def score(self, product: Scalar, row: Axis, column: Axis) -> Scalar:
        """What the steps make of the product of a query and a key."""
        for name, operand, number in self.template.params["steps"]:
            other: Scalar = constant(number, F32)
            loaded = self.load(operand + 3, row, column) if operand >= 0 else None
            if name in ("where", "unless"):
                assert loaded is not None
                arms = (product, other) if name == "where" else (other, product)
                product = select(loaded, *arms)
            elif FUNCTIONS[name].arity == 1:
                product = op(name, product)
            else:
                product = op(name, product, other if loaded is None else cast(loaded, F32))
        return product


def stores_vectors(template: Template) -> bool:
    """Whether all of the result is stored four aligned elements at a time."""
    problem = Problem.of(template)
    row, column = axes_over((problem.queries, as_expr(problem.depth)), "o")
    place = problem.place(-1, row, column)
    whole = problem.depth % 4 == 0 and is_one(stride_of(place, column))
    return whole and divisible(place - column, 4) is True


def _flat(buffer: Buffer) -> Buffer:
    return Buffer(buffer.name, buffer.dtype, (numel(buffer),))

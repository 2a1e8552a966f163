"""Stores that combine: one step among all invocations of a dispatch.

Sums, minima and maxima of 32-bit integers are instructions. Others try until nobody came between;
a 64-bit sum adds its low words first and then, with the carry, the high ones.
"""

from typing import Protocol

from edgerelax.codegen.wgsl_functions import apply
from edgerelax.codegen.wgsl_storage import Layout
from edgerelax.codegen.wgsl_text import MUL, UNARY, Text, base_type, call
from edgerelax.ir.kernel import KExpr, KStore, KVar

_INSTRUCTIONS = {"add": "atomicAdd", "max": "atomicMax", "min": "atomicMin"}


class Printer(Protocol):
    """What this file needs of a printer."""

    def expr(self, expr: KExpr) -> Text:
        """The text of an expression."""

    def named(self, text: Text) -> Text:
        """The text, if simple, or a fresh name for its value."""

    def fresh(self, text: Text) -> Text:
        """A fresh name for a value."""

    def line(self, text: str) -> None:
        """Append a line."""


def combine(layout: Layout, stmt: KStore, printer: Printer) -> None:
    """Print a store that combines."""
    index = printer.named(printer.expr(stmt.index))
    value = printer.named(printer.expr(stmt.value))
    if layout.dtype.bits == 64:
        _add_wide(layout.name, index, value, printer)
        return
    place = Text(f"&{layout.name}[{index.text}]")
    if layout.dtype.is_integer and stmt.combine in _INSTRUCTIONS:
        printer.line(f"{call(_INSTRUCTIONS[stmt.combine], place, value).text};")
    else:
        _exchange(layout, stmt, place, value, printer)


def _add_wide(name: str, index: Text, value: Text, printer: Printer) -> None:
    first = printer.named(Text(f"{index.at(UNARY)} * 2", MUL))
    low = printer.fresh(Text(f"atomicAdd(&{name}[{first.text}], {value.text}.x)"))
    carry = f"select(0u, 1u, {low.text} + {value.text}.x < {low.text})"
    printer.line(f"atomicAdd(&{name}[{first.text} + 1], {value.text}.y + {carry});")


def _exchange(layout: Layout, stmt: KStore, place: Text, value: Text, printer: Printer) -> None:
    dtype, word = stmt.value.dtype, layout.word
    operand = KVar(dtype, 1, "old")
    held = (
        Text("old")
        if base_type(dtype) == word
        else call(f"bitcast<{base_type(dtype)}>", Text("old"))
    )
    new = apply(stmt.combine, (operand, stmt.value), [held, value])
    bits = new if base_type(dtype) == word else call(f"bitcast<{word}>", new)
    for line in (
        "{",
        f"  var old = atomicLoad({place.text});",
        "  loop {",
        f"    let new_bits = {bits.text};",
        "    if (new_bits == old) {",
        "      break;",
        "    }",
        f"    let swap = atomicCompareExchangeWeak({place.text}, old, new_bits);",
        "    if (swap.exchanged) {",
        "      break;",
        "    }",
        "    old = swap.old_value;",
        "  }",
        "}",
    ):
        printer.line(line)

"""The WAT prelude: finding the functions that a text calls, and what those import from the VM."""

import re
from functools import cache
from importlib import resources

_HEAD = re.compile(r"^\(func \$(er_\w+)", re.MULTILINE)
_CALL = re.compile(r"\(call \$(er_\w+)")

_UNARY = (
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "exp", "log", "log1p", "expm1", "erf",
)  # fmt: skip
_BINARY = ("pow", "fmod")

IMPORTS: dict[str, tuple[str, int]] = {
    f"er_{name}{letter}": (kind, arity)
    for names, arity in ((_UNARY, 1), (_BINARY, 2))
    for name in names
    for letter, kind in (("f", "f32"), ("", "f64"))
}
"""Functions of the VM: their type, and how many operands they take."""


@cache
def _functions() -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(
        resources.files("edgerelax.codegen.prelude").iterdir(), key=lambda f: f.name
    ):
        if file.name.endswith(".wat"):
            text = file.read_text()
            starts = [*_HEAD.finditer(text)]
            for match in starts:
                found[match.group(1)] = text[match.start() : _end(text, match.start())]
    return found


def _end(text: str, start: int) -> int:
    """Where the bracket closes that opens at `start`."""
    depth = 0
    for match in re.compile(r"[()]|;;.*").finditer(text, start):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    raise ValueError("unbalanced brackets in the prelude")


def prelude_for(text: str) -> tuple[list[str], list[str]]:
    """The imports and the functions that a text needs."""
    functions: dict[str, str] = {}
    imports: dict[str, None] = {}
    todo = _CALL.findall(text)[::-1]
    while todo:
        name = todo.pop()
        if name in IMPORTS:
            imports[name] = None
        elif name not in functions:
            functions[name] = _functions()[name]
            todo.extend(_CALL.findall(functions[name])[::-1])
    return [_import(name) for name in imports], list(functions.values())


def _import(name: str) -> str:
    kind, arity = IMPORTS[name]
    params = " ".join([kind] * arity)
    return f'(import "env" "{name}" (func ${name} (param {params}) (result {kind})))'

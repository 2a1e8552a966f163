"""Who may import whom: a package, itself and the floors below (docs/architecture.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "edgerelax"
FLOORS = (
    "sym version",
    "ir",
    "ops",
    "frontends passes",
    "schedule vm",
    "codegen",
    "artifact",
    "hosts",
    "pipeline checking api",
    "chat",
    "speech",
    "serve",
    "cli __main__ __init__",
)
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names.split()}
OPEN = frozenset(["pipeline", "checking", "api", "__init__", "cli", "__main__"])
"""Those that may import their neighbours: single files about one thing."""


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports from us."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(level=0, module=str() as module):
                if module == "edgerelax":
                    yield from ((node.lineno, f"edgerelax.{a.name}") for a in node.names)
                else:
                    yield node.lineno, module
            case ast.Import(names=names):
                yield from ((node.lineno, a.name) for a in names)
            case ast.ImportFrom():
                yield node.lineno, "." * node.level


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    here = package_of(path)
    assert here in FLOOR, f"{here} stands on no floor: add it to FLOORS"
    for line, name in imported(ast.parse(path.read_text())):
        assert not name.startswith("."), f"{path}:{line}: relative import"
        if name.split(".")[0] != "edgerelax":
            continue
        there = name.split(".")[1] if "." in name else "__init__"
        below = FLOOR.get(there, len(FLOORS)) < FLOOR[here]
        neighbours = FLOOR.get(there) == FLOOR[here] and {here, there} <= OPEN
        assert below or there == here or neighbours, f"{path}:{line}: {here} may not import {there}"


def test_the_fence_stands() -> None:
    lines = list(imported(ast.parse("from edgerelax.ops import OPS\nimport edgerelax.sym.expr")))
    assert lines == [(1, "edgerelax.ops"), (2, "edgerelax.sym.expr")]
    assert FLOOR["passes"] == FLOOR["frontends"] > FLOOR["ops"] > FLOOR["ir"] > FLOOR["sym"]

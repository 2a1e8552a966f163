"""Library dispatch: calls that a registered pattern matches become one call of its function.

Partial lowering (Relax 4.6, design 5): what no pattern matches goes on to legalize.

    h = matmul(x, w)
    a = add(h, b)        →     y = call_library("blas.dense", x, w, b)
    y = relu(a)

All matches of all patterns are found first and taken longest first, then in the order of the
registry, then in program order, as long as they share no call. A match is refused, with the reason
in the report, if something else uses a value inside it, if its `check` says so, or if a shape is
not known. The call stands at the root, with the root's annotation.

Before: operators in their final form. After: Call, CallTIR and CallLibrary side by side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import Binding, Block, Call, CallLibrary, GraphFunc, Module, Value, blocks
from edgerelax.ir.library import Library
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.pattern import Match, holes, matches, size
from edgerelax.ir.rewrite import rewrite_func
from edgerelax.ir.types import Annotation, IntTensor, Tensor, Tuple, as_tensor
from edgerelax.passes.fold_constants import concrete
from edgerelax.passes.place import NOT_ON_GPU, Device
from edgerelax.passes.uses import Uses

WORDS = frozenset(("encoder", "device"))
"""Keyword arguments that hosts give to functions, so that they can't be attributes."""


def for_device(libraries: Sequence[Library], device: Device) -> tuple[Library, ...]:
    """Those that programs with that main device may call."""
    return tuple(
        entry
        for entry in libraries
        if entry.device == device or (entry.everywhere and device == "gpu")
    )


def dispatch_library(module: Module, *, libraries: Sequence[Library] = ()) -> Module:
    """Dispatch in every graph function."""
    if not libraries:
        return module
    outcome = Outcome()
    funcs = {name: _dispatch(func, libraries, outcome) for name, func in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


@dataclass(frozen=True, slots=True)
class _Candidate:
    library: Library
    match: Match
    order: tuple[int, int, int]  # longest, registry, program


def _dispatch(func: GraphFunc, libraries: Sequence[Library], outcome: Outcome) -> GraphFunc:
    uses = Uses(func.body)
    taken: dict[Value, list[Binding]] = {}  # by variable of a matched call, what takes its place
    for block in blocks(func.body):
        for candidate in _candidates(block, libraries):
            match, library = candidate.match, candidate.library
            if any(b.var in taken for b in match.bindings.values()):
                continue
            reason = _reason_against(library, match, uses)
            if reason is not None:
                outcome.skip(f"{library.name}: {reason}", match.root.var.name)
                continue
            taken |= {b.var: [] for b in match.bindings.values()}
            taken[match.root.var] = [Binding(match.root.var, _call(library, match))]
            outcome.did(library.name)
    return rewrite_func(func, _replacing(taken)) if taken else func


def _replacing(taken: Mapping[Value, list[Binding]]) -> Callable[[Binding], list[Binding]]:
    return lambda binding: taken.get(binding.var, [binding])


def _candidates(block: Block, libraries: Sequence[Library]) -> list[_Candidate]:
    found = [
        _Candidate(library, match, (-size(library.pattern), at, position))
        for at, library in enumerate(libraries)
        for position, match in enumerate(matches(library.pattern, block))
    ]
    return sorted(found, key=lambda c: c.order)


def _reason_against(library: Library, match: Match, uses: Uses) -> str | None:
    inside = {b.var for b in match.bindings.values()}
    for binding in match.bindings.values():
        assert isinstance(binding.value, Call)
        if not binding.value.op.pure:
            return f"{binding.value.op.name} has effects"
        if binding.var is match.root.var:
            continue
        if any(user is None or user.var not in inside for user in uses.of(binding.var)):
            return "a value inside the match is used elsewhere"
    values = [match.values[h] for h in holes(library.pattern)]
    if isinstance(match.root.var.annotation, IntTensor):
        return "its result are integers that the host knows"
    kinds = [v.annotation for v in values] + [match.root.var.annotation]
    tensors = [t for kind in kinds for t in _tensors(kind)]
    if any(t is None or t.dims is None or t.dtype is None for t in tensors):
        return "a shape is not known"
    if library.device == "gpu":
        if any(t is not None and t.dtype in NOT_ON_GPU for t in tensors):
            return "a dtype that no GPU has"
        if len(set(values)) < len(values):
            return "one value is two operands, which a GPU cannot bind"
    return library.check(match) or _reason_against_attrs(library.attrs(match))


def _tensors(annotation: Annotation) -> list[Tensor | None]:
    fields = annotation.fields if isinstance(annotation, Tuple) else (annotation,)
    return [as_tensor(field) for field in fields]


def _reason_against_attrs(attrs: Mapping[str, Any]) -> str | None:
    symbolic = [k for k, v in attrs.items() if v is not None and concrete(v) is None]
    return f"attribute {', '.join(symbolic)} is not known at compile time" if symbolic else None


def _call(library: Library, match: Match) -> CallLibrary:
    attrs = {name: concrete(value) for name, value in library.attrs(match).items()}
    for name, value in attrs.items():
        if name in WORDS or not _is_plain(value):
            raise InputError(
                f"library {library.name}: attribute {name}={value!r} cannot be passed",
                hint="numbers, strings, bools and tuples of them; not named "
                + " or ".join(sorted(WORDS)),
            )
    args = tuple(match.values[h] for h in holes(library.pattern))
    return CallLibrary(library.name, args, attrs, library.device)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)

"""Template stages: one emitter per kind."""

from collections.abc import Callable
from dataclasses import dataclass

from edgerelax.ir.loop import Template
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.templates import (
    attention,
    cumsum,
    nonzero,
    recurrence,
    scatter,
    topk,
)
from edgerelax.schedule.target import Target

Emitter = Callable[[Template, str, frozenset[str], Target], Emitted]

EMITTERS: dict[str, Emitter] = {
    "attention": attention.emit,
    "cumsum": cumsum.emit,
    "nonzero": nonzero.emit,
    "scatter": scatter.emit_elements,
    "scatter_nd": scatter.emit_slices,
    "topk": topk.emit,
    "lstm": recurrence.emit,
    "gru": recurrence.emit,
    "rnn": recurrence.emit,
}


@dataclass(frozen=True, slots=True)
class TemplateMatch:
    """A template, its name and the constants of its function."""

    template: Template
    name: str
    weights: frozenset[str]


def match(unit: Unit, target: Target) -> TemplateMatch | Reject:
    """A template of a kind that has an emitter."""
    (first, *others) = unit.stages
    if others or not isinstance(first, Template):
        return Reject("not a template")
    if first.kind not in EMITTERS:
        return Reject(f"no kernels for template {first.kind}")
    return TemplateMatch(first, unit.name, unit.weights)


def configs(found: TemplateMatch, target: Target) -> tuple[str, ...]:
    """The kind itself."""
    return (found.template.kind,)


def cost(found: TemplateMatch, config: str, target: Target) -> float:
    """Nothing competes with it."""
    return 0.0


def emit(found: TemplateMatch, config: str, target: Target) -> Emitted:
    """The kernels of its kind."""
    return EMITTERS[config](found.template, found.name, found.weights, target)


TEMPLATE = Strategy("template", match, configs, cost, emit)

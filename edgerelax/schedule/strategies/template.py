"""Template stages: one emitter per kind."""

from collections.abc import Callable
from dataclasses import dataclass

from edgerelax.ir.loop import Template
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.templates import (
    attention,
    attention_blocks,
    attention_split,
    cumsum,
    nonzero,
    recurrence,
    scatter,
    suppress,
    token_sampling,
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
    "greedy_tokens": token_sampling.emit_greedy,
    "sample_tokens": token_sampling.emit,
    "suppress": suppress.emit,
    "topk": topk.emit,
    "lstm": recurrence.emit,
    "gru": recurrence.emit,
    "rnn": recurrence.emit,
}

SPLIT_KEYS = "attention, keys split"
BLOCKS = "attention, blocks of queries"


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
    """The kind itself; for attention by the number of queries, two ways where they are few."""
    template = found.template
    if template.kind != "attention":
        return (template.kind,)
    if attention_blocks.fits(template, target):
        return (BLOCKS,)
    whole = f"attention, {attention.rows_of(template, target)} queries each"
    return (whole, SPLIT_KEYS) if attention_split.refusal(template, target) is None else (whole,)


def cost(found: TemplateMatch, config: str, target: Target) -> float:
    """Nothing competes with a template but its own configs."""
    if found.template.kind != "attention":
        return 0.0
    return attention_split.cost(found.template, target, split=config == SPLIT_KEYS)


def emit(found: TemplateMatch, config: str, target: Target) -> Emitted:
    """The kernels of its kind."""
    ways = {SPLIT_KEYS: attention_split.emit, BLOCKS: attention_blocks.emit}
    emitter = ways.get(config) or EMITTERS[found.template.kind]
    return emitter(found.template, found.name, found.weights, target)


TEMPLATE = Strategy("template", match, configs, cost, emit)

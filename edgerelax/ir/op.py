"""The operator record: the one place that knows what an operator means; floor 2 fills them in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.types import Annotation

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CallSite:
    """What an operator's rules may look at.

    Operand annotations (None for an absent optional operand), attributes, and operand values where
    they are constants.
    """

    op: "Operator"
    args: tuple[Annotation | None, ...]
    attrs: dict[str, Any]
    constants: tuple[Array | None, ...]
    result: Annotation | None = None  # set for `lower`: the call's annotation
    name: str = ""  # for messages and kernel names
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the graph level.

    `infer(site)` gives the result's annotation (Tuple for several results) or raises ShapeError; it
    answers coarsely where dims are unknown. `lower(site)` gives the loop program: one input buffer
    per present operand in order, one output per result; None if the operator never reaches the loop
    level. `reference(*arrays, **attrs)` is the meaning in numpy (None for absent operands, symbolic
    attributes evaluated, several results as a tuple); it folds constants and is the tests' oracle.
    `view` marks operators that only rename the bytes (reshape), `commutative` those of two operands
    that may be exchanged.
    `samples` are concrete calls for the conformance tests: (operand arrays or shapes, attrs).
    """

    name: str
    operands: tuple[str, ...]
    infer: Callable[[CallSite], Annotation]
    reference: Callable[..., Any]
    lower: Callable[[CallSite], LoopFunc] | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    optional: int = 0
    variadic: bool = False
    view: bool = False
    commutative: bool = False
    pure: bool = True
    samples: tuple["Sample", ...] = ()

    def __repr__(self) -> str:
        return f"Operator({self.name})"


@dataclass(frozen=True, slots=True)
class Sample:
    """A concrete call. Each operand is an array, or None for an absent one."""

    args: tuple[Array | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    """Deterministic normal numbers, for samples."""
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)

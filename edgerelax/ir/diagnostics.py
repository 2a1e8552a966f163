"""Errors: one class per kind of blame, each with a code, the node it speaks of, its origin, a hint.

ShapeError blames the model or the caller, UnsupportedError nobody, InputError the caller of an
interface, FormatError a file; VerifyError and PassError blame us.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class EdgeRelaxError(Exception):
    """A problem in words: what is wrong, with both values; the node; its origin; what to do."""

    default_code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, node: str = "", origin: str = "", hint: str = "", code: str = ""
    ) -> None:
        super().__init__(message, node, origin, hint, code)
        self.message = message
        self.node = node
        self.origin = origin
        self.hint = hint
        self.code = code or self.default_code

    def __str__(self) -> str:
        lines = [self.message]
        lines += [f"  {line}" for line in self.node.splitlines()]
        if self.origin:
            lines.append(f"  from {self.origin}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.node, self.origin, self.hint, self.code)


def _rebuild(
    kind: type[EdgeRelaxError], message: str, node: str, origin: str, hint: str, code: str
) -> EdgeRelaxError:
    """What copying an error between processes calls."""
    return kind(message, node=node, origin=origin, hint=hint, code=code)


class ShapeError(EdgeRelaxError):
    """The model contradicts itself or its inputs: shapes, dtypes, ranks."""

    default_code = "shape"


class UnsupportedError(EdgeRelaxError):
    """Right, but beyond us yet: what, where, and the nearest thing that works."""

    default_code = "unsupported"


class InputError(EdgeRelaxError):
    """A wrong argument of the command line or the API: which, what was given, what is allowed."""

    default_code = "input"


class FormatError(EdgeRelaxError):
    """A damaged or foreign file: which, where in it, what was expected, what was found."""

    default_code = "format"


class VerifyError(EdgeRelaxError):
    """Our fault: an invariant of the IR does not hold."""

    default_code = "verify"


class PassError(EdgeRelaxError):
    """Our fault: a pass failed or broke the module."""

    default_code = "pass"


class Report:
    """Collects problems so that they are told all at once.

    >>> report = Report()
    >>> for node in nodes:
    ...     with report.collect():
    ...         convert(node)
    >>> report.raise_if_any("model.onnx")
    """

    def __init__(self) -> None:
        self.problems: list[EdgeRelaxError] = []

    def add(self, problem: EdgeRelaxError) -> None:
        self.problems.append(problem)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep an EdgeRelaxError of the body instead of raising it."""
        try:
            yield
        except EdgeRelaxError as problem:
            self.add(problem)

    def __bool__(self) -> bool:
        return bool(self.problems)

    def __len__(self) -> int:
        return len(self.problems)

    def raise_if_any(self, what: str) -> None:
        """Raise one problem as it is, several as one error of the gravest kind among them."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise self.problems[0]
        kind = min((type(p) for p in self.problems), key=_GRAVEST.index)
        distinct = tuple(dict.fromkeys(str(p) for p in self.problems))
        listed = "\n".join(distinct)
        hints = {p.hint for p in self.problems}
        codes = {p.code for p in self.problems}
        raise kind(
            f"{what}: {len(self.problems)} problems",
            node=listed,
            hint=hints.pop() if len(hints) == 1 and len(distinct) == 1 else "",
            code=codes.pop() if len(codes) == 1 else "",
        )


_GRAVEST: list[type[EdgeRelaxError]] = [
    VerifyError, PassError, FormatError, ShapeError, InputError, UnsupportedError, EdgeRelaxError,
]  # fmt: skip

"""The kernels of a program, and what launches give them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from edgerelax.codegen.kernel_steps import iteration_steps
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.kernel_in_place import over_operands, stores_as_is
from edgerelax.ir.plan import Schedule
from edgerelax.sym import Expr


class Kernels:
    """The kernels that a program launches, numbered for each device.

    Those of one name that differ in nothing but the values of their scalars and the grid, which
    a launch gives, are one.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[Kernel]] = {"gpu": [], "cpu": []}
        self._numbers: dict[int, tuple[Kernel, int]] = {}  # by identity
        self._named: dict[str, list[tuple[Kernel, int]]] = {}
        self._steps: dict[int, tuple[Kernel, Expr]] = {}  # by identity
        self._in_place: dict[
            tuple[int, tuple[tuple[str, str], ...]], tuple[Kernel, Kernel | None]
        ] = {}

    def number(self, kernel: Kernel) -> int:
        """The kernel's number on its device; it is added if it is new."""
        if id(kernel) not in self._numbers:
            self._numbers[id(kernel)] = kernel, self._number(kernel)
        return self._numbers[id(kernel)][1]

    def _number(self, kernel: Kernel) -> int:
        known = self._named.setdefault(kernel.name, [])
        for other, number in known:
            if _is_same_code(kernel, other):
                return number
        known.append((kernel, len(self.of[kernel.device])))
        self.of[kernel.device].append(kernel)
        return known[-1][1]

    def scalars(self, kernel: Kernel) -> list[Expr]:
        """What a launch gives it; the last on the CPU: about how many steps an iteration takes."""
        out = [value for _, value in kernel.scalars]
        if kernel.device == "cpu":
            if id(kernel) not in self._steps:
                self._steps[id(kernel)] = kernel, iteration_steps(kernel)
            out.append(self._steps[id(kernel)][1])
        return out

    def integers(self, schedule: Schedule) -> Iterator[Expr]:
        """What its launches compute of sizes, whichever version it is."""
        for version in schedule.versions:
            yield from (guard.expr for guard in version.guards)
            for kernel in version.kernels:
                yield kernel.grid
                yield from self.scalars(kernel)

    def over(self, kernel: Kernel, pairs: Mapping[str, str]) -> Kernel | None:
        """The kernel with one buffer for an operand and the output in its place.

        None where it then only stores what it reads.
        """
        key = id(kernel), tuple(pairs.items())
        if key not in self._in_place:
            own = over_operands(kernel, pairs)
            idle = own is not kernel and stores_as_is(own)
            self._in_place[key] = kernel, None if idle else own
        return self._in_place[key][1]


def _is_same_code(a: Kernel, b: Kernel) -> bool:
    if [name for name, _ in a.scalars] != [name for name, _ in b.scalars]:
        return False
    return a == replace(b, scalars=a.scalars, grid=a.grid)

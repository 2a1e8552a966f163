"""Who uses a value, in a function's body."""

from collections import defaultdict
from collections.abc import Sequence

from edgerelax.ir.graph import Binding, Block, Value, blocks, operands


class Uses:
    """The uses of every value; None among them stands for a block that gives it as a result.

    What a nested body uses from outside, the expression that holds it uses as well.
    """

    def __init__(self, body: Block) -> None:
        self._of: dict[Value, list[Binding | None]] = defaultdict(list)
        for block in blocks(body):
            for binding in block.bindings:
                for value in operands(binding.value):
                    self._of[value].append(binding)
            for value in block.results:
                self._of[value].append(None)

    def of(self, value: Value) -> Sequence[Binding | None]:
        """Every use; a binding twice if it uses the value twice."""
        return self._of.get(value, ())

    def only(self, value: Value) -> Binding | None:
        """The one binding that uses the value, if nothing else does."""
        found = self.of(value)
        return found[0] if len(found) == 1 else None

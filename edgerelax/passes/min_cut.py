"""Minimum cuts of small directed graphs (Dinic, 1970)."""

from collections import deque
from collections.abc import Hashable

SOURCE, SINK = "source", "sink"


class Cut:
    """A graph under construction; capacities are integers."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {SOURCE: 0, SINK: 1}
        self._out: list[list[int]] = [[], []]  # edges by node
        self._to: list[int] = []
        self._left: list[int] = []

    def edge(self, a: Hashable, b: Hashable, capacity: int) -> None:
        """What is paid if `a` stays with the source and `b` goes to the sink."""
        for start, end, left in ((a, b, capacity), (b, a, 0)):
            self._out[self._index(start)].append(len(self._to))
            self._to.append(self._index(end))
            self._left.append(left)

    def sink_side(self) -> set[Hashable]:
        """The nodes on the sink's side of a cheapest cut, as few as possible stay with it."""
        while self._levels():
            self._at = [0] * len(self._out)
            while self._push():
                pass
        reached = {k for k, level in enumerate(self._level) if level >= 0}
        return {node for node, k in self.number.items() if k not in reached}

    def _index(self, node: Hashable) -> int:
        if node not in self.number:
            self.number[node] = len(self._out)
            self._out.append([])
        return self.number[node]

    def _levels(self) -> bool:
        """Distances from the source over edges with room; whether the sink is reached."""
        self._level = [-1] * len(self._out)
        self._level[0] = 0
        todo = deque([0])
        while todo:
            node = todo.popleft()
            for edge in self._out[node]:
                end = self._to[edge]
                if self._left[edge] and self._level[end] < 0:
                    self._level[end] = self._level[node] + 1
                    todo.append(end)
        return self._level[1] >= 0

    def _push(self) -> bool:
        """Fill one shortest path, found by depth first search without recursion."""
        path: list[int] = []
        node = 0
        while node != 1:
            out = self._out[node]
            while self._at[node] < len(out):
                edge = out[self._at[node]]
                end = self._to[edge]
                if self._left[edge] and self._level[end] == self._level[node] + 1:
                    path.append(edge)
                    node = end
                    break
                self._at[node] += 1
            else:
                if not path:
                    return False
                node = self._to[path.pop() ^ 1]
                self._at[node] += 1
        room = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= room
            self._left[edge ^ 1] += room
        return True

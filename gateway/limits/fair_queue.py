"""A queue that many classes share by weight, first come first served within each class. Pure.

Start-time fair queueing (Goyal, Vin and Cheng, 1996), where every item costs 1. A class that begins to wait gets the
start tag max(V, F), where V is the start tag of the item taken last and F the class's finish tag. The class with the
smallest start tag is served next, and F = start + 1 / weight becomes its next start tag. So for two classes that wait
the whole time, the numbers of items taken, each divided by its weight, differ by at most 1/w_i + 1/w_j: one item of
each. A class that returns has no credit and no debt. Equal tags go to the class that began to wait first.

Priorities are strict: while a class of a higher priority waits, no lower one is served. Fairness holds within a
priority, which has a V of its own. When the queue is empty, all tags are dropped. `pop` is O(classes), the rest O(1).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Line(Generic[T]):
    """The items of one class, and its tags."""

    __slots__ = ("finish", "items", "priority", "start", "weight")

    def __init__(self) -> None:
        self.items: OrderedDict[T, None] = OrderedDict()
        self.weight = 1.0
        self.priority = 0
        self.start = 0.0
        self.finish = 0.0


class FairQueue(Generic[T]):
    """Items that wait, each in the line of its class."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        self._virtual: dict[int, float] = {}  # V by priority

    def __len__(self) -> int:
        return sum([len(line.items) for line in self._lines.values()])

    def __iter__(self) -> Iterator[T]:
        for line in self._lines.values():
            yield from line.items

    def length(self, name: str) -> int:
        """Return the number of items of class `name`."""
        line = self._lines.get(name)
        return 0 if line is None else len(line.items)

    def first(self, name: str) -> T | None:
        """Return the item of class `name` that has waited longest."""
        line = self._lines.get(name)
        return None if line is None else next(iter(line.items), None)

    def put(self, item: T, name: str, weight: float, priority: int) -> None:
        """Append `item` to class `name`. `weight` (above 0) and `priority` hold for the whole class."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line()
        if not line.items or priority != line.priority:
            line.start = max(self._virtual.get(priority, 0.0), line.finish if priority == line.priority else 0.0)
        line.weight, line.priority = weight, priority
        line.items[item] = None

    def pop(self) -> T | None:
        """Remove and return the next item; `None` when the queue is empty."""
        best: _Line[T] | None = None
        for line in self._lines.values():
            if line.items and (best is None or (-line.priority, line.start) < (-best.priority, best.start)):
                best = line
        if best is None:
            return None
        item, _ = best.items.popitem(last=False)
        self._virtual[best.priority] = best.start
        best.start = best.finish = best.start + 1.0 / best.weight
        self._forget()
        return item

    def drop(self, item: T, name: str) -> None:
        """Remove `item` of class `name`, if it still waits."""
        line = self._lines.get(name)
        if line is not None and item in line.items:
            del line.items[item]
            self._forget()

    def _forget(self) -> None:
        """Drop all tags if the queue is empty."""
        if not len(self):
            self._lines.clear()
            self._virtual.clear()

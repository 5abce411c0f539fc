"""Published acceptance of P-EAGLE heads by text, and the loads that a simulation plays with it. Pure, except one file.

Published is the acceptance length (bonus token included) at one or two K. A simulation needs conditional acceptance by
position: c_i, the probability that the token at position i is accepted when all before it were. With it

    acceptance length at K = 1 + c_1 + c_1 c_2 + ... + c_1 ... c_K

Two lengths do not determine seven c_i. The assumption here is that c is piecewise constant: one value up to the first
published K, which the first length determines, and one from there to the next, which the difference of the lengths
determines. Beyond the last published K it stays. All requests of a text have the same c, as their variation is not
published; so the simulation does not show the gain of K by request within one text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.engine import K_MAX
from tests.simulation.gpu_plants import DOCUMENT
from tests.simulation.traffic import Source

_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Text:
    """A kind of text: acceptance lengths by K, their head and their source."""

    name: str
    head: str
    lengths: Mapping[int, float]
    source: str

    def running(self, count: int) -> Source:
        """Return the source of `count` running requests of it."""
        first, *_ = acceptances = by_position(self.lengths, K_MAX)
        return Source(first, count, by_position=tuple(item / first for item in acceptances))


@dataclass(frozen=True, slots=True)
class Load:
    """Texts by their shares of the requests in flight."""

    name: str
    shares: Mapping[str, float]

    def counts(self, in_flight: int) -> dict[str, int] | None:
        """Return the number of running requests of each text; `None` when one is not a whole number."""
        counts = {name: share * in_flight for name, share in self.shares.items()}
        return {name: int(count) for name, count in counts.items()} if all(map(_is_whole, counts.values())) else None


def texts() -> dict[str, Text]:
    """Return the texts by name."""
    return {
        item["name"]: Text(
            item["name"],
            item["head"],
            {int(k): length for k, length in item["acceptance_length"].items()},
            item["source"],
        )
        for item in json.loads(DOCUMENT.read_text())["texts"]
    }


def loads() -> dict[str, Load]:
    """Return the loads by name."""
    return {item["name"]: Load(item["name"], item["shares"]) for item in json.loads(DOCUMENT.read_text())["loads"]}


def by_position(lengths: Mapping[int, float], count: int) -> tuple[float, ...]:
    """Return the conditional acceptance of the first `count` positions, from acceptance lengths by K."""
    acceptances: list[float] = []
    before, reached = 1.0, 1.0
    for k, length in sorted(lengths.items()):
        more = k - len(acceptances)
        acceptance = _acceptance((length - before) / reached, more)
        acceptances += [acceptance] * more
        before, reached = length, reached * acceptance**more
    acceptances += [acceptances[-1]] * (count - len(acceptances))
    return tuple(acceptances[:count])


def _acceptance(tokens: float, positions: int) -> float:
    """Return the c for which c + c^2 + ... + c^positions is `tokens`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(middle**at for at in range(1, positions + 1)) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _is_whole(count: float) -> bool:
    return count == int(count)

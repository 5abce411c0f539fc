"""Chooses K for each group of a batch's decodes, from the engine's estimates (`State`) and requirements (`Wishes`).

Decodes are grouped by the requirements of their class (`Wish`), by band, and by whether a draft of the request has been
verified. K is chosen for all bands of each requirement that occurs in the batch, so a decode that moves into an empty
band has a K at once.

A request without a verified draft (an *unprobed* one) is in the band in which similar requests start. If more than
`UNPROBED_RATIO` of the decodes are unprobed, the others do not represent the batch. Each group of the others then gets
the K that it would get if all decodes were in it, and the unprobed ones the K that they would get alone. If any of
these K is above 0, the drafter runs, and the step can also make first drafts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.acceptance import UNPROBED
from specpilot.policy.bands import BANDS
from specpilot.policy.choice import Chooser, Group, Worth, worth_of
from specpilot.policy.names import K_LIMIT
from specpilot.policy.prices import Prices
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]
_BAND, WISH_AT = UNPROBED - 1, UNPROBED.bit_length()
"""A group's code is a number: its band, the bit `UNPROBED`, and from the bit `WISH_AT` on the index of its `Wish`."""

UNPROBED_RATIO = 0.5
"""If more than this share of the decodes has no verified draft, the others do not represent the batch."""

MOVED_RATIO = 0.125
"""K is chosen anew on the scheduler's thread when more than this share of the decodes has joined a group or left the
batch since the last choice. A larger value takes less time and follows a changed batch later."""

KEPT_CHOOSERS = 16
"""Choosers that a state keeps, one for each set of wishes in a batch; bounds the memory of a state that is not replaced
every second."""


class Wish(NamedTuple):
    """The requirements for a class: its weight, bounds on K, and a bound on the mean inter-token latency (0: none)."""

    weight: float = 1.0
    low: int = 0
    high: int = K_LIMIT
    itl_slo_s: float = 0.0


class Wishes(NamedTuple):
    """The requirements of all classes; the object is replaced as a whole.

    `each` has every distinct requirement once, `of_class` its index by class. `deepest` is the largest depth of a probe
    by class: 0 for a class with a pinned K, which is not probed.
    """

    each: Sequence[Wish]
    of_class: Mapping[str, int]
    deepest: Mapping[str, int]
    objective: Objective


@dataclass(frozen=True, slots=True)
class State:
    """The inputs of the choice, replaced as a whole: AL [bands, K_max + 1], prices, the slowdown factor.

    `choosers` caches the choosers made from this state, by the codes of their groups.
    """

    lengths: Vector
    prices: Prices
    slowdown: float
    choosers: dict[tuple[int, ...], tuple[Wishes, Chooser]] = field(default_factory=dict)

    def chooser(self, wishes: Wishes, codes: tuple[int, ...]) -> Chooser:
        """Return the chooser for these groups, made on first use."""
        made_for, found = self.choosers.get(codes, (None, None))
        if found is None or made_for is not wishes:
            groups = [_group(wishes, self, code) for code in codes]
            found = Chooser(groups, self.lengths, self.prices, wishes.objective)
            if len(self.choosers) >= KEPT_CHOOSERS:
                self.choosers.clear()
            self.choosers[codes] = wishes, found
        return found


class Choice(NamedTuple):
    """K by group, and the state, the requirements and the decodes by group from which it was chosen.

    The object is replaced as a whole. `width` is the largest K.
    """

    state: State | None
    wishes: Wishes
    counts: Counter[int]
    k_of: Mapping[int, int]
    width: int = 0


def chosen(state: State, wishes: Wishes, counts: Counter[int], near: int | None = None) -> Choice:
    """Choose K for each band of each requirement in `counts`; `near`: only widths near it, which takes less time."""
    unprobed = sum([count for code, count in counts.items() if code & UNPROBED])
    if unprobed > UNPROBED_RATIO * counts.total():
        k_of = _k_of_each_alone(state, wishes, counts, near)
    else:
        k_of = _k_of_batch(state, wishes, counts, near)
    if near is not None and not any(k_of[code] for code in counts):  # a smaller width may be worth its cost
        return chosen(state, wishes, counts)
    return Choice(state, wishes, counts, k_of, max(k_of.values()))


def is_like(counts: Counter[int], choice: Choice, n: int) -> bool:
    """Whether the choice still holds for the `n` decodes in `counts`.

    It holds if every group has a K, and at most `MOVED_RATIO` of the decodes started, ended or changed their group
    since. A decode that changed its group counts once, because only the growth of groups is summed. The decrease of the
    batch is added.

    If K is 0 for all, a group that was empty has no valid K: its K = 0 was chosen without decodes in it, and a decode
    in it may be worth the drafter's pass.
    """
    before = choice.counts
    if not counts.keys() <= (choice.k_of.keys() if choice.width else before.keys()):
        return False
    grown = sum([max(0, count - before[group]) for group, count in counts.items()])
    return grown + max(0, before.total() - n) <= MOVED_RATIO * n


def explained(choice: Choice, counts: Counter[int]) -> list[dict[str, Any]]:
    """Return each of these groups as plain data, with its K and why: the worth and the cost of its draft positions.

    The positions are the last one that it drafts and the next one. The list is empty if the next step chooses anew.
    """
    state, wishes = choice.state, choice.wishes
    if state is None or not counts.keys() <= choice.k_of.keys():
        return []
    present = sorted(counts)
    groups = [_group(wishes, state, code, counts[code]) for code in present]
    ks = [choice.k_of[code] for code in present]
    worth = worth_of(groups, state.lengths, state.prices, ks)
    return [
        {
            "classes": [name for name, at in wishes.of_class.items() if at == code >> WISH_AT],
            "band": code & _BAND,
            "unprobed": bool(code & UNPROBED),
            "decodes": counts[code],
            "k": k,
            "why": "; ".join(_said(item, code & _BAND) for item in positions),
            "positions": [
                {
                    "position": item.position,
                    "worth_tokens": round(item.tokens, 3),
                    "cost_tokens": round(item.cost_tokens, 3),
                }
                for item in positions
            ],
        }
        for code, k, positions in zip(present, ks, worth, strict=True)
    ]


def _k_of_batch(state: State, wishes: Wishes, counts: Counter[int], near: int | None) -> dict[int, int]:
    """Return K by group for the batch; a decode without a verified draft counts for the band in which it starts."""
    codes = _codes_of(counts)
    decodes = [counts[code] + counts[code | UNPROBED] for code in codes]
    ks = state.chooser(wishes, codes).choose(decodes, near)
    return {code | flag: k for flag in (0, UNPROBED) for code, k in zip(codes, ks, strict=True)}


def _k_of_each_alone(state: State, wishes: Wishes, counts: Counter[int], near: int | None) -> dict[int, int]:
    """Return K of the unprobed groups as a batch of their own, and of each other group as if all decodes were in it."""
    codes = _codes_of(counts)
    ks = state.chooser(wishes, codes).choose([counts[code | UNPROBED] for code in codes], near)
    k_of = {code | UNPROBED: k for code, k in zip(codes, ks, strict=True)}
    for code in counts.keys() - k_of.keys():
        [k_of[code]] = state.chooser(wishes, (code,)).choose([counts.total()])
    return k_of


def _codes_of(counts: Counter[int]) -> tuple[int, ...]:
    """Return the code of every band of each requirement in `counts`, without `UNPROBED`."""
    present = sorted({code >> WISH_AT for code in counts})
    return tuple([wish << WISH_AT | band for wish in present for band in range(BANDS)])


def _group(wishes: Wishes, state: State, code: int, count: int = 0) -> Group:
    """Return the group with this code and `count` decodes."""
    wish, k_max = wishes.each[code >> WISH_AT], state.lengths.shape[1] - 1
    high = min(wish.high, k_max)
    slo_s = wish.itl_slo_s / state.slowdown
    return Group(count, code & _BAND, wish.weight, min(wish.low, high), high, slo_s)


def _said(worth: Worth, band: int) -> str:
    return (
        f"position {worth.position} of band {band} is worth {worth.tokens:.2f} tokens and costs {worth.cost_tokens:.2f}"
    )

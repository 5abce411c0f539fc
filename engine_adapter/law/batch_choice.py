"""K of each group of a batch's decodes, by what an engine has learned (`State`) and what policies ask for (`Wishes`).

Decodes are grouped by the wishes of their class, by band, and by whether a draft of theirs was verified yet. K is
chosen for all bands of the wishes that are there, so a decode that enters an empty band has a K too.

Requests without a verified draft (unprobed requests) lie in the band in which their kind begins. When they are more
than `UNPROBED_RATIO` of the decodes, K of the others is chosen band by band as if the whole batch were in that band,
and K of the unprobed ones as if they were alone. If one K is above 0 the drafter runs, and the step can also make first
drafts.
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
"""A group's code is a number: its band, the bit `UNPROBED`, and the index of its wish from the bit `WISH_AT` on."""

UNPROBED_RATIO = 0.5
"""Share of the decodes of requests without a verified draft from which on the bands of the others say nothing of the
whole: then each known request gets K as if all were like it, and the others as if they were alone."""

MOVED_RATIO = 0.125
"""Share of the decodes that may have joined a group, or left the batch, since K was chosen, before K is chosen anew on
the scheduler's thread. More takes less time and follows a changed batch later."""


class Wish(NamedTuple):
    """What a policy asks for a class: its weight, bounds on K, and on the mean inter-token latency (0: none)."""

    weight: float = 1.0
    low: int = 0
    high: int = K_LIMIT
    itl_slo_s: float = 0.0


class Wishes(NamedTuple):
    """The wishes of all classes, replaced whole: each once, the place of each class's, and how deep its probes may go.

    A class with a pinned K is not probed: 0.
    """

    each: Sequence[Wish]
    of_class: Mapping[str, int]
    deepest: Mapping[str, int]
    objective: Objective


@dataclass(frozen=True, slots=True)
class State:
    """What K is chosen by, replaced whole: AL [bands, K_max + 1], prices, the slowdown factor.

    `choosers` keeps those that were made of it, by wishes and the groups' codes.
    """

    lengths: Vector
    prices: Prices
    slowdown: float
    choosers: dict[tuple[int, ...], tuple[Wishes, Chooser]] = field(default_factory=dict)

    def chooser(self, wishes: Wishes, codes: tuple[int, ...]) -> Chooser:
        """Return what chooses K of these groups."""
        made_for, found = self.choosers.get(codes, (None, None))
        if found is None or made_for is not wishes:
            groups = [_group(wishes, self, code) for code in codes]
            found = Chooser(groups, self.lengths, self.prices, wishes.objective)
            self.choosers[codes] = wishes, found
        return found


class Choice(NamedTuple):
    """K by group, chosen in this state, by these wishes, for so many decodes of each group; replaced whole.

    `width` is the largest K.
    """

    state: State | None
    wishes: Wishes
    counts: Counter[int]
    k_of: Mapping[int, int]
    width: int = 0


def chosen(state: State, wishes: Wishes, counts: Counter[int], near: int | None = None) -> Choice:
    """Choose K for each band of the wishes of these decodes; `near`: of about that width, which takes less time."""
    unprobed = sum([count for code, count in counts.items() if code & UNPROBED])
    if unprobed > UNPROBED_RATIO * counts.total():
        k_of = _k_of_each_alone(state, wishes, counts, near)
    else:
        k_of = _k_of_batch(state, wishes, counts, near)
    if near is not None and not any(k_of[code] for code in counts):  # a narrower drafter may pay
        return chosen(state, wishes, counts)
    return Choice(state, wishes, counts, k_of, max(k_of.values()))


def is_like(counts: Counter[int], choice: Choice, n: int) -> bool:
    """Whether each group has a K, and few of `n` decodes changed their group, came or went since these were chosen.

    One that changes its group counts once, because only the groups that grew are summed; the decodes by which the batch
    shrank are added. Where nothing drafts, a group that was empty counts as new: its K is 0 because no other group pays
    for the drafter's pass, and a decode that joins it may.
    """
    before = choice.counts
    if not counts.keys() <= (choice.k_of.keys() if choice.width else before.keys()):
        return False
    grown = sum([max(0, count - before[group]) for group, count in counts.items()])
    return grown + max(0, before.total() - n) <= MOVED_RATIO * n


def explained(choice: Choice, counts: Counter[int]) -> list[dict[str, Any]]:
    """Return each of these groups as plain data, with its K and why: the worth and the cost of its draft positions.

    The positions are the last one that it drafts and the next one. Empty where the next step chooses anew.
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
    """Return K by group for the batch; a decode without a verified draft counts for the band in which it begins."""
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
    """Return the codes of all bands of the wishes of these decodes, without `UNPROBED`."""
    present = sorted({code >> WISH_AT for code in counts})
    return tuple([wish << WISH_AT | band for wish in present for band in range(BANDS)])


def _group(wishes: Wishes, state: State, code: int, count: int = 0) -> Group:
    """Return so many decodes as a group, by its code."""
    wish, k_max = wishes.each[code >> WISH_AT], state.lengths.shape[1] - 1
    high = min(wish.high, k_max)
    slo_s = wish.itl_slo_s / state.slowdown
    return Group(count, code & _BAND, wish.weight, min(wish.low, high), high, slo_s)


def _said(worth: Worth, band: int) -> str:
    return (
        f"position {worth.position} of band {band} is worth {worth.tokens:.2f} tokens and costs {worth.cost_tokens:.2f}"
    )

"""Groups a batch's decodes, and has K chosen for each group: the step with the largest worth (`law.step_worth`).

The inputs are the engine's `Estimates` and the `Requirements` of the classes.

Decodes are grouped by the requirement for their class, by band, by whether a draft of the request has been verified,
and, where a draft token of a long context takes longer, by context (`law.contexts`). K is chosen for all bands of each
requirement and context that occur in the batch. So a decode that moves into an empty band normally has a K at once. In
two cases such a move makes the law choose K anew: K is 0 for all groups (`is_like`), or most decodes are unprobed and
the decode is probed (below).

A decode is *probed* if a draft of its request has been verified, else *unprobed*. An unprobed decode is in the band in
which similar requests start. If more than `UNPROBED_RATIO` of the decodes are unprobed, the probed ones do not
represent the batch:

- The groups of unprobed decodes get the K of a batch that has them alone.
- Each group of probed decodes gets the K that it would get if all decodes were in it. An empty group of probed decodes
  gets no K.

Where all decodes of a step need one K, or share the passes of a sequential drafter, a group alone tells nothing about
its cost beside others: unprobed decodes count for the band in which they start.

If one of these K is above 0, the step drafts. In such a step the other unprobed requests may get free first drafts
(`plan.probes`).

Where the choice for throughput alone is near a bound on latency or beyond it, `law.goal_choice` chooses. Unprobed
decodes then count for the band in which they start. An empty band has K of the nearest band of its requirement that has
decodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.choice import Chooser
from specpilot.engine_adapter.law.contexts import CONTEXT_AT, REQUIREMENT_AT, Contexts
from specpilot.engine_adapter.law.goal_choice import GoalChooser
from specpilot.engine_adapter.law.prices import Prices
from specpilot.engine_adapter.law.step_worth import Group, Step, keeps_slos, step_of
from specpilot.policy.bands import BANDS
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective

Vector = NDArray[np.float64]
BAND = UNPROBED - 1
"""The bits of a group's code (`law.contexts`) that are its band."""

UNPROBED_RATIO = 0.5
"""If more than this share of the decodes is unprobed, the probed ones do not represent the batch."""

MOVED_RATIO = 0.125
"""K is chosen anew on the scheduler's thread when the growth of all groups plus the fall in the number of decodes,
since the last choice, exceeds this share of the decodes (`is_like`). A larger value takes less time and follows a
changed batch later."""

MOST_CHOOSERS = 48
"""Largest number of choosers that `Estimates` cache. It bounds their memory while no refresh replaces them."""


CLEAR = 0.75
"""A predicted latency up to this multiple of its bound needs no look at it: 99 % of the requests are within it."""

_MS = 1000.0


class Requirements(NamedTuple):
    """The requirements of a policy for all classes; the object is replaced as a whole.

    `distinct` has each requirement once, `index_of` its index by class. `probe_depth` is the largest depth of a probe
    by class: 0 for a class with a pinned K, which is not probed.
    """

    distinct: Sequence[ClassGuidance]
    index_of: Mapping[str, int]
    probe_depth: Mapping[str, int]
    objective: Objective

    @property
    def has_bounds(self) -> bool:
        """Whether a class has a bound on latency."""
        return any(item.tpot_bound_ms for item in self.distinct)

    @classmethod
    def of(cls, guidance: Guidance, k_max: int) -> "Requirements":
        """Return the requirements of `guidance` on an engine of this `k_max`."""
        distinct = [*dict.fromkeys(guidance.classes.values())]
        index_of = {name: distinct.index(item) for name, item in guidance.classes.items()}
        probe_depth = {
            name: 0 if item.k_min >= item.k_max else max(1, min(item.k_max, k_max))
            for name, item in guidance.classes.items()
        }
        return cls(distinct, index_of, probe_depth, guidance.objective)


@dataclass(frozen=True, slots=True)
class Estimates:
    """The inputs of the choice, replaced as a whole: AL [bands, K_max + 1], prices, the slowdown factor, contexts.

    `choosers` caches the choosers made from these estimates, by the codes of their groups. `pause` is called between
    two parts of a computation on a thread beside that of the engine's steps; `None` on that thread.
    """

    lengths: Vector
    prices: Prices
    slowdown: float
    contexts: Contexts = Contexts()  # noqa: RUF009 - frozen
    choosers: dict[tuple[int, ...], tuple[Requirements, Chooser]] = field(default_factory=dict)
    pause: Callable[[], None] | None = None

    def apart(self, pause: Callable[[], None]) -> "Estimates":
        """Return these for another thread, which does not touch the cached choosers."""
        return replace(self, choosers={}, pause=pause)

    def k_of(
        self, requirements: Requirements, decodes: Mapping[int, int], near_width: int | None = None
    ) -> dict[int, int]:
        """Return K by group, for throughput, of a batch that has these groups, with so many decodes in each."""
        codes = tuple(decodes)
        made_for, chooser = self.choosers.get(codes, (None, None))
        if chooser is None or made_for is not requirements:
            groups = [group_of(requirements, self, code) for code in codes]
            chooser = Chooser(groups, self.lengths, self.prices, requirements.objective)
            if len(self.choosers) >= MOST_CHOOSERS:
                self.choosers.clear()
            self.choosers[codes] = requirements, chooser
        if self.pause is not None:
            self.pause()
        return dict(zip(codes, chooser.choose([*decodes.values()], near_width, self.pause), strict=True))


class Choice(NamedTuple):
    """K by group, and the estimates, the requirements and the decodes by group from which it was chosen.

    The object is replaced as a whole. `width` is the largest K. `fastest` is the choice for goals alone, and that of
    the last choice after a quick one; empty if the choice for throughput alone is clearly within all bounds.
    """

    estimates: Estimates | None
    requirements: Requirements
    counts: Counter[int]
    k_of: Mapping[int, int]
    width: int = 0
    fastest: Mapping[int, int] = {}

    @property
    def groups(self) -> list[Group]:
        """The groups of `counts`, in its order."""
        assert self.estimates is not None
        return [group_of(self.requirements, self.estimates, code, count) for code, count in self.counts.items()]

    def step(self, k_of: Mapping[int, int] | None = None) -> Step:
        """Return the step of the choice, or that of other K by group."""
        assert self.estimates is not None
        ks = [(self.k_of if k_of is None else k_of)[code] for code in self.counts]
        return step_of(self.groups, self.estimates.lengths, self.estimates.prices, ks)


def chosen(
    estimates: Estimates, requirements: Requirements, counts: Counter[int], last: Choice | None = None
) -> Choice:
    """Choose K for each band of each requirement in `counts`; with the `last` choice only near it, in less time."""
    unprobed = sum([count for code, count in counts.items() if code & UNPROBED])
    is_apart = not (estimates.prices.need_one_k or estimates.prices.pass_s)
    is_new = is_apart and unprobed > UNPROBED_RATIO * counts.total()
    way = _k_of_each_alone if is_new else k_of_batch
    k_of = way(estimates, requirements, counts, last.width if last is not None else None)
    choice = Choice(estimates, requirements, counts, k_of, max(k_of.values()))
    if requirements.has_bounds and not keeps_slos(choice.groups, choice.step(), CLEAR):
        choice = _with_goals(choice, last)
    if last is not None and not any(choice.k_of[code] for code in counts):  # a smaller width may be worth its cost
        return chosen(estimates, requirements, counts)
    return choice


def _with_goals(choice: Choice, last: Choice | None) -> Choice:
    """Return the choice that goals change from the `choice` for throughput; near the `last` one if there is one."""
    estimates, requirements, counts = choice.estimates, choice.requirements, choice.counts
    assert estimates is not None
    decodes: Counter[int] = Counter()
    for code, count in counts.items():
        decodes[code & ~UNPROBED] += count
    groups = [group_of(requirements, estimates, code, count) for code, count in decodes.items()]
    chooser = GoalChooser(groups, estimates.lengths, estimates.prices, requirements.objective, estimates.pause)
    if last is not None and last.fastest and last.requirements is requirements and decodes.keys() <= last.k_of.keys():
        ks, fastest = chooser.nearby([last.k_of[code] for code in decodes]), last.fastest
    else:
        start = [choice.k_of.get(code, choice.k_of[code | UNPROBED]) for code in decodes]
        alone = chooser.fastest(start)
        ks, fastest = chooser.best(start, alone), _of_every_band(dict(zip(decodes, alone, strict=True)))
    return choice._replace(k_of=_of_every_band(dict(zip(decodes, ks, strict=True))), width=max(ks), fastest=fastest)


def _of_every_band(k_of: Mapping[int, int]) -> dict[int, int]:
    """Return K of each band of the requirements in `k_of`: that of the nearest band in it."""
    every = {
        code: k_of[min((at for at in k_of if not (at ^ code) >> REQUIREMENT_AT), key=lambda at: abs(at - code))]
        for code in _codes_of(k_of)
    }
    return every | {code | UNPROBED: k for code, k in every.items()}


def is_like(counts: Counter[int], choice: Choice, n: int) -> bool:
    """Whether the choice still holds for the `n` decodes in `counts`.

    It holds if every group has a K, and the growth of all groups that grew plus the fall in the number of decodes is at
    most `MOVED_RATIO` of the decodes. So a decode that changed its group counts once. One that ended and was replaced
    in its group does not count.

    If K is 0 for all, a group that was empty has no valid K: its K was chosen without decodes, and one decode may be
    worth the drafter's pass.
    """
    before = choice.counts
    if not counts.keys() <= (choice.k_of.keys() if choice.width else before.keys()):
        return False
    grown = sum([max(0, count - before[group]) for group, count in counts.items()])
    return grown + max(0, before.total() - n) <= MOVED_RATIO * n


def k_of_every_group(estimates: Estimates, requirements: Requirements, counts: Counter[int]) -> dict[int, int]:
    """Return K by group of each requirement, as if all decodes in `counts` had this requirement.

    An empty group gets the K that it has if one decode of the largest group is in it instead. While it is empty it may
    have 0 for no other reason.
    """
    k_of: dict[int, int] = {}
    for index in range(len(requirements.distinct)):
        alike: Counter[int] = Counter({index << REQUIREMENT_AT: 0})  # short contexts, for those of no group
        for code, count in counts.items():
            alike[index << REQUIREMENT_AT | code & (1 << REQUIREMENT_AT) - 1] += count
        k_of |= k_of_batch(estimates, requirements, alike)
        one = Counter(dict.fromkeys([code for code, _ in alike.most_common(1)], 1))
        for code in _codes_of(alike):
            if not alike[code] + alike[code | UNPROBED]:
                moved = alike - one + Counter({code: 1})
                k_of[code] = k_of[code | UNPROBED] = k_of_batch(estimates, requirements, moved)[code]
    return k_of


def k_of_batch(
    estimates: Estimates, requirements: Requirements, counts: Counter[int], near_width: int | None = None
) -> dict[int, int]:
    """Return K by group for the batch, for throughput; an unprobed decode counts for the band in which it starts."""
    decodes = {code: counts[code] + counts[code | UNPROBED] for code in _codes_of(counts)}
    k_of = estimates.k_of(requirements, decodes, near_width)
    return k_of | {code | UNPROBED: k for code, k in k_of.items()}


def _k_of_each_alone(
    estimates: Estimates, requirements: Requirements, counts: Counter[int], near_width: int | None
) -> dict[int, int]:
    """Return K of the unprobed groups as a batch of their own, and of each other group as if all decodes were in it."""
    decodes = {code: counts[code | UNPROBED] for code in _codes_of(counts)}
    unprobed = estimates.k_of(requirements, decodes, near_width)
    k_of = {code | UNPROBED: k for code, k in unprobed.items()}
    for code in counts.keys() - k_of.keys():
        k_of |= estimates.k_of(requirements, {code: counts.total()})
    return k_of


def _codes_of(counts: Iterable[int]) -> tuple[int, ...]:
    """Return the code of every band of each requirement and context in `counts`, without `UNPROBED`."""
    present = sorted({code >> CONTEXT_AT for code in counts})
    return tuple([others << CONTEXT_AT | band for others in present for band in range(BANDS)])


def group_of(requirements: Requirements, estimates: Estimates, code: int, count: int = 0) -> Group:
    """Return the group with this code and `count` decodes."""
    guidance, k_max = requirements.distinct[code >> REQUIREMENT_AT], estimates.lengths.shape[1] - 1
    high = min(guidance.k_max, k_max)
    slo_s = (guidance.tpot_bound_ms or 0.0) / _MS / estimates.slowdown
    low, extra_s = min(guidance.k_min, high), estimates.contexts.extra_of(code)
    return Group(count, code & BAND, guidance.weight, low, high, slo_s, extra_token_s=extra_s)

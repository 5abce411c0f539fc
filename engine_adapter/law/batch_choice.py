"""Groups a batch's decodes, and has K chosen for each group by `law.choice.Chooser`: the most tokens per second.

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

Where all decodes of a step need one K, unprobed decodes count for the band in which they start.

If one of these K is above 0, the step drafts. In such a step the other unprobed requests may get free first drafts
(`plan.probes`).

Where the choice for throughput alone would exceed a bound on latency, two further ones are compared (`Aim`), and any
two of the three in turn: some steps with one, the others of each `TURN_STEPS` steps with the other. The worth of the
mean step decides (`law.step_worth`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.choice import Chooser
from specpilot.engine_adapter.law.contexts import CONTEXT_AT, REQUIREMENT_AT, Contexts
from specpilot.engine_adapter.law.prices import Prices
from specpilot.engine_adapter.law.step_worth import (
    PRICE,
    Group,
    Step,
    hopes,
    keeps_slos,
    mean,
    step_in_turn,
    step_of,
    worth_of_step,
    worths,
)
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


TURN_STEPS = 16
"""Steps in which two choices take one turn. A reply should last for several turns, and a change of K costs a catching
up."""

LEAST_TURN_GAIN = 1.15
"""Two choices take turns only if that is worth so much more than either alone, as near a cliff. In simulation with 1.01
they took turns for gains that catching up then cost: 0.93 instead of 0.97 of the best single K's throughput."""

_SHARES = np.arange(1, TURN_STEPS) / TURN_STEPS
_MS = 1000.0


class Aim(Enum):
    """What a chooser aims at: P of latency bounds, and the weight of requests without a bound beside their own."""

    THROUGHPUT = (0.0, 1.0)
    BOTH = (PRICE, 1.0)
    GOALS = (4 * PRICE, 1e-3)


class Search(NamedTuple):
    """How K is chosen: among the widths near `near_width` (`None`: all), for `aim`, with this `hope` by group's code.

    `between` is called between two parts of the computation. Without any `hope` it is 1.
    """

    near_width: int | None = None
    between: Callable[[], None] | None = None
    aim: Aim = Aim.BOTH
    hope: Mapping[int, float] = {}


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
        return any(item.itl_slo_ms for item in self.distinct)

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

    `choosers` caches the choosers made from these estimates, by their aim and the codes of their groups.
    """

    lengths: Vector
    prices: Prices
    slowdown: float
    contexts: Contexts = Contexts()  # noqa: RUF009 - frozen
    choosers: dict[tuple[Aim, tuple[int, ...]], tuple[Requirements, Chooser]] = field(default_factory=dict)

    def k_of(self, requirements: Requirements, decodes: Mapping[int, int], search: Search) -> dict[int, int]:
        """Return K by group of a batch that has these groups, with so many decodes in each."""
        codes, (near_width, between, aim, hope) = tuple(decodes), search
        made_for, chooser = self.choosers.get((aim, codes), (None, None))
        if chooser is None or made_for is not requirements:
            price, others = aim.value
            groups = [group_of(requirements, self, code) for code in codes]
            groups = [item if item.itl_slo_s else item._replace(weight=others * item.weight) for item in groups]
            chooser = Chooser(groups, self.lengths, self.prices, requirements.objective, price)
            if len(self.choosers) >= MOST_CHOOSERS:
                self.choosers.clear()
            self.choosers[aim, codes] = requirements, chooser
        if between is not None:
            between()
        by_group = [max(hope.get(code, 0.0), hope.get(code | UNPROBED, 0.0)) for code in codes] if hope else None
        return dict(zip(codes, chooser.choose([*decodes.values()], near_width, between, by_group), strict=True))


class Choice(NamedTuple):
    """K by group, and the estimates, the requirements and the decodes by group from which it was chosen.

    The object is replaced as a whole. `width` is the largest K. In `turned` of each `TURN_STEPS` steps K is `turned_k`
    instead. `fastest` is the choice for goals alone; empty if the choice for throughput alone keeps all bounds.
    """

    estimates: Estimates | None
    requirements: Requirements
    counts: Counter[int]
    k_of: Mapping[int, int]
    width: int = 0
    turned_k: Mapping[int, int] = {}
    turned: int = 0
    fastest: Mapping[int, int] = {}

    @property
    def groups(self) -> list[Group]:
        """The groups of `counts`, in its order."""
        assert self.estimates is not None
        return [group_of(self.requirements, self.estimates, code, count) for code, count in self.counts.items()]

    def step(self, k_of: Mapping[int, int] | None = None) -> Step:
        """Return the mean step of the choice, or that of other K by group."""
        if k_of is not None:
            return self._step(k_of)
        if not self.turned:
            return self._step(self.k_of)
        return mean(self.in_turn(self.k_of), self.in_turn(self.turned_k), self.turned / TURN_STEPS)

    def in_turn(self, k_of: Mapping[int, int]) -> Step:
        """Return the step of K by group that takes turns with others."""
        assert self.estimates is not None
        return step_in_turn(self.groups, self.estimates.lengths, self.estimates.prices, self._ks(k_of))

    def _step(self, k_of: Mapping[int, int]) -> Step:
        assert self.estimates is not None
        return step_of(self.groups, self.estimates.lengths, self.estimates.prices, self._ks(k_of))

    def _ks(self, k_of: Mapping[int, int]) -> list[int]:
        return [k_of[code] for code in self.counts]


def chosen(
    estimates: Estimates,
    requirements: Requirements,
    counts: Counter[int],
    near_width: int | None = None,
    between: Callable[[], None] | None = None,
) -> Choice:
    """Choose K for each band of each requirement in `counts`; `near_width`: only near it, which takes less time.

    `between` is called between two parts of the computation.
    """
    unprobed = sum([count for code, count in counts.items() if code & UNPROBED])
    is_new = unprobed > UNPROBED_RATIO * counts.total() and not estimates.prices.need_one_k
    way = _k_of_each_alone if is_new else k_of_batch

    def choice_of(aim: Aim, hope: Mapping[int, float] = MappingProxyType({})) -> Choice:
        k_of = way(estimates, requirements, counts, Search(near_width, between, aim, hope))
        return Choice(estimates, requirements, counts, k_of, max(k_of.values()))

    choice = choice_of(Aim.THROUGHPUT)
    if requirements.has_bounds and not keeps_slos(choice.groups, choice.step()):
        fastest = choice_of(Aim.GOALS)
        hope = dict(zip(counts, hopes(choice.groups, fastest.step()), strict=True))
        choice = _with_turns([choice, choice_of(Aim.BOTH, hope), fastest], [*hope.values()])
    drafts_nothing = not choice.turned and not any(choice.k_of[code] for code in counts)
    if near_width is not None and drafts_nothing:  # a smaller width may be worth its cost
        return chosen(estimates, requirements, counts)
    return choice


def _with_turns(choices: Sequence[Choice], hope: Sequence[float]) -> Choice:
    """Return the choice with the largest worth, alone or in turn with another; the last one is for goals alone."""
    objective = choices[0].requirements.objective
    groups = [group._replace(hope=each) for group, each in zip(choices[0].groups, hope, strict=True)]
    steps = [choice.step() for choice in choices]
    values = [worth_of_step(groups, step, objective) for step in steps]
    most = max(values)
    best = choices[values.index(most)]._replace(fastest=choices[-1].k_of)
    steps = [choice.in_turn(choice.k_of) for choice in choices]
    for one, other in combinations(range(len(choices)), 2):
        if choices[one].k_of == choices[other].k_of:
            continue
        both = [mean(steps[one], steps[other], share) for share in _SHARES]
        seconds, lengths = np.array([step.seconds for step in both]), np.array([step.lengths for step in both])
        values_in_turn = worths(groups, seconds, lengths, objective)
        at = int(values_in_turn.argmax())
        if values_in_turn[at] > most * LEAST_TURN_GAIN:
            most, turned = float(values_in_turn[at]), at + 1
            usual, rare = choices[one], choices[other]
            if turned > TURN_STEPS // 2:
                usual, rare, turned = rare, usual, TURN_STEPS - turned
            width = max(usual.width, rare.width)
            best = usual._replace(width=width, turned_k=rare.k_of, turned=turned, fastest=choices[-1].k_of)
    return best


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


def k_of_every_group(
    estimates: Estimates, requirements: Requirements, counts: Counter[int], between: Callable[[], None]
) -> dict[int, int]:
    """Return K by group of each requirement, as if all decodes in `counts` had this requirement.

    An empty group gets the K that it has if one decode of the largest group is in it instead. While it is empty it may
    have 0 for no other reason.
    """
    k_of: dict[int, int] = {}
    for index in range(len(requirements.distinct)):
        alike: Counter[int] = Counter({index << REQUIREMENT_AT: 0})  # short contexts, for those of no group
        for code, count in counts.items():
            alike[index << REQUIREMENT_AT | code & (1 << REQUIREMENT_AT) - 1] += count
        k_of |= k_of_batch(estimates, requirements, alike, Search(between=between))
        one = Counter(dict.fromkeys([code for code, _ in alike.most_common(1)], 1))
        for code in _codes_of(alike):
            if not alike[code] + alike[code | UNPROBED]:
                between()
                moved = alike - one + Counter({code: 1})
                k_of[code] = k_of[code | UNPROBED] = k_of_batch(
                    estimates, requirements, moved, Search(between=between)
                )[code]
    return k_of


def k_of_batch(
    estimates: Estimates,
    requirements: Requirements,
    counts: Counter[int],
    search: Search = Search(),  # noqa: B008 - frozen
) -> dict[int, int]:
    """Return K by group for the batch; a decode without a verified draft counts for the band in which it starts."""
    decodes = {code: counts[code] + counts[code | UNPROBED] for code in _codes_of(counts)}
    k_of = estimates.k_of(requirements, decodes, search)
    return k_of | {code | UNPROBED: k for code, k in k_of.items()}


def _k_of_each_alone(
    estimates: Estimates, requirements: Requirements, counts: Counter[int], search: Search
) -> dict[int, int]:
    """Return K of the unprobed groups as a batch of their own, and of each other group as if all decodes were in it."""
    decodes = {code: counts[code | UNPROBED] for code in _codes_of(counts)}
    unprobed = estimates.k_of(requirements, decodes, search)
    k_of = {code | UNPROBED: k for code, k in unprobed.items()}
    for code in counts.keys() - k_of.keys():
        k_of |= estimates.k_of(requirements, {code: counts.total()}, search._replace(near_width=None))
    return k_of


def _codes_of(counts: Counter[int]) -> tuple[int, ...]:
    """Return the code of every band of each requirement and context in `counts`, without `UNPROBED`."""
    present = sorted({code >> CONTEXT_AT for code in counts})
    return tuple([others << CONTEXT_AT | band for others in present for band in range(BANDS)])


def group_of(requirements: Requirements, estimates: Estimates, code: int, count: int = 0) -> Group:
    """Return the group with this code and `count` decodes."""
    guidance, k_max = requirements.distinct[code >> REQUIREMENT_AT], estimates.lengths.shape[1] - 1
    high = min(guidance.k_max, k_max)
    slo_s = (guidance.itl_slo_ms or 0.0) / _MS / estimates.slowdown
    low, extra_s = min(guidance.k_min, high), estimates.contexts.extra_of(code)
    return Group(count, code & BAND, guidance.weight, low, high, slo_s, extra_token_s=extra_s)

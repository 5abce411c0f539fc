"""The law of one engine: K for the batch that is there, from what the engine itself counted and measured.

Two threads. The scheduler's looks K up (`k_of`) once a step and notes what the plan left out (`note_plan`). The agent's
takes the evidence in and, once a second, sets prices and acceptance anew (`refresh`); it replaces one reference, so the
scheduler's thread sees the old state or the new one and never a mixture.

Decodes are grouped by what their class wishes, by band, and by whether a draft of theirs was verified yet. K is chosen
for all bands of the wishes that are there, so a decode in a band that was empty has a K too. With each new state the
agent's thread chooses, among all widths of the drafter; when many of the decodes changed their group (`MOVED_RATIO`)
the scheduler's does, near the last width.

Requests without a verified draft lie in the band in which their kind begins. Drafts whose K was chosen there do not
count for this band: they are drafts of a mixture, and would hide that the requests which were found in the band draft
well. Where requests without a verified draft are most of the decodes, the bands of the few others say little of the
batch. Each known request then gets the K that it would have if all were like it. If that is above 0 the drafter runs,
and the step can also make the first draft of the others.

Until steps were measured and traffic was seen for a second the static K holds: at K = 0 from the start nothing would be
learned of the first requests. With the acceptance of a fleet the law begins as soon as steps were measured.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.evidence.acceptance import UNPROBED, Acceptance
from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.law.acceptance import BandAcceptance
from specpilot.engine_adapter.law.cost import StepCost, features_of, step_s
from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.law.tuning import (
    LEAST_DRAFTED_RATIO,
    LEAST_STEPS,
    LEFT_KEPT,
    LOAD_SHARE,
    MOVED_RATIO,
    UNPROBED_RATIO,
)
from specpilot.policy.bands import BANDS
from specpilot.policy.choice import Chooser, Group, Worth, worth_of
from specpilot.policy.graphs import Graphs
from specpilot.policy.names import DEFAULT_CLASS, K_LIMIT
from specpilot.policy.prices import Load, PriceList, Prices
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]
_BAND, _UNPROBED, _WISH_AT = 7, UNPROBED, 4
"""A group is a number: its band, whether its requests are unprobed, and its wish above that."""
Step = tuple[StepShape, float, int]
"""A step that has ended, its seconds, and the length of its requests' sequences together."""


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


class Request(Protocol):
    """What the law reads of a request that decodes."""

    label: str
    acceptance: Acceptance


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


class _Choice(NamedTuple):
    """K by group, chosen in this state, by these wishes, for so many decodes of each group; replaced whole.

    `width` is the largest K.
    """

    state: State | None
    wishes: Wishes
    counts: Counter[int]
    k_of: Mapping[int, int]
    width: int = 0


class _Latest(NamedTuple):
    """The groups of the decodes of the latest step, by these wishes; replaced whole."""

    wishes: Wishes
    groups: Sequence[int]


class EngineLaw:
    """Counts, prices and chooses for one engine, of at most `most_running` decodes."""

    def __init__(
        self,
        k_max: int,
        static_k: int,
        most_running: int,
        graphs: Graphs | None = None,
    ) -> None:
        self.k_max, self.static_k = k_max, static_k
        self.state: State | None = None
        self.price_list: PriceList | None = None  # replaced whole, also before traffic was seen
        self.probe_prices: ProbePrices | None = None
        self.acceptance = BandAcceptance(k_max)
        self.cost = StepCost(graphs)
        self.choices = self.steps = 0  # how often K was chosen anew, and looked up
        self.decode_s = 0.0  # of traffic's steps that did not catch up, without what their prefilled tokens took
        self._graphs = graphs
        self._most = most_running * (1 + k_max)
        self._load = Load()
        self._has_traffic = False
        self._decodes = 1.0  # mean of the latest steps
        self._left = self._left_s = 0.0  # decodes left out, by the share drafted for; seconds of catching up
        self._latest: _Latest | None = None
        self.wish({})

    def wish(self, wishes: Mapping[str, Wish], objective: Objective = Objective.THROUGHPUT) -> None:
        """Choose by these wishes, by class, from now on; any other class has those of `default`."""
        found = {DEFAULT_CLASS: Wish(), **wishes}
        of = [*dict.fromkeys(found.values())]  # classes with the same wishes are one
        deepest = {
            name: 0 if wish.low >= wish.high else max(1, min(wish.high, self.k_max)) for name, wish in found.items()
        }
        self.wishes = Wishes(of, {name: of.index(wish) for name, wish in found.items()}, deepest, objective)
        self._latest, self._choice = None, _Choice(None, self.wishes, Counter(), {})

    # The scheduler's thread

    def k_of(self, requests: Sequence[Request]) -> list[int]:
        """Return K of each of the requests that decode."""
        state, wishes = self.state, self.wishes
        wish_of, default = wishes.of_class, wishes.of_class[DEFAULT_CLASS]
        if state is None:
            static = [min(max(self.static_k, wish.low), wish.high, self.k_max) for wish in wishes.each]
            return [static[wish_of.get(request.label, default)] for request in requests]
        groups = [wish_of.get(request.label, default) << _WISH_AT | request.acceptance.code for request in requests]
        self._latest = _Latest(wishes, groups)
        counts = Counter(groups)
        self.steps += 1
        choice = self._choice
        if choice.state is not state or choice.wishes is not wishes or not _is_like(counts, choice, len(requests)):
            self.choices += 1
            is_alike = len(requests) <= 2 * choice.counts.total() <= 4 * len(requests)
            near = choice.width if is_alike and choice.width else None
            self._choice = choice = _chosen(state, wishes, counts, near)
        k_of = choice.k_of
        return [k_of[group] for group in groups]

    def note_plan(self, decodes: int, drafted: int, rows: int) -> None:
        """Take in for how many of the decodes the next drafts are made by choice, and how many rows these catch up."""
        state = self.state
        if state is None or drafted < LEAST_DRAFTED_RATIO * decodes:
            return
        self._left = self._left * LEFT_KEPT + (decodes - drafted) * drafted / decodes
        spent = state.prices.reads_s + state.prices.read_s * rows if rows else 0.0
        self._left_s = self._left_s * LEFT_KEPT + spent

    # The agent's thread

    def learn(self, steps: Iterable[Step], evidence: Evidence | None = None) -> None:
        """Take in steps that have ended, and what was counted in them.

        Without `evidence` the drafts of these steps say nothing of traffic.
        """
        ratio, tokens, context = self._load
        for shape, seconds, length in steps:
            self.cost.note(shape, seconds, length)
            if evidence is not None and shape.decodes and (shape.prefill or not shape.read):
                self.decode_s += max(0.0, seconds - self._prefill_s(shape))
            ratio += LOAD_SHARE * ((shape.prefill > 0) - ratio)
            if shape.prefill:
                tokens += (shape.prefill - tokens) * (0.1 if tokens else 1.0)
            if shape.decodes:
                self._decodes += LOAD_SHARE * (shape.decodes - self._decodes)
                if not shape.prefill:
                    context += LOAD_SHARE * (length / shape.decodes - context)
        self._load = Load(ratio, tokens, context)
        if evidence is not None:
            self._has_traffic |= bool(evidence.drafts)
            trials, accepts = evidence.trials - evidence.first_trials, evidence.accepts - evidence.first_accepts
            self.acceptance.learn(trials, accepts)

    def _prefill_s(self, shape: StepShape) -> float:
        """Return what a step's prefilled tokens took, the drafter's pass included, by the prices; 0 without any."""
        found = self.price_list
        if not shape.prefill or found is None:
            return 0.0
        both = shape, shape._replace(prefill=0, read=0)
        whole, without = (step_s(found.coefficients, features_of(each, 0, self._graphs)) for each in both)
        return max(0.0, whole - without) * found.slowdown

    def refresh(self) -> None:
        """Set prices and acceptance by what was learned; some milliseconds."""
        if self.cost.steps < LEAST_STEPS:
            return
        coefficients = self.cost.fit()
        if coefficients is None:
            return
        left_s = self._left_s / self._left if self._left >= 1 else 0.0
        self.price_list = found = PriceList(coefficients, self._load, left_s, self.cost.slowdown)
        prices = found.prices(self._most, self._graphs)
        probes = ProbePrices.of(prices, max(1, round(self._decodes)))
        self.probe_prices = probes
        if self._has_traffic or self.acceptance.has_prior:
            state, latest = State(self.acceptance.lengths(), prices, found.slowdown), self._latest
            if latest is not None and latest.groups and latest.wishes is self.wishes:
                self._choice = _chosen(state, latest.wishes, Counter(latest.groups))
            self.state = state

    def described(self) -> dict[str, Any] | None:
        """Return what K is chosen by, as plain data; `None`: nothing is known yet. On the scheduler's thread.

        AL by band and K, the slowdown factor, and for each group of the latest step its K and why: the worth and the
        cost of its last draft position and of the next one.
        """
        state = self.state
        if state is None:
            return None
        return {
            "acceptance_lengths": np.round(state.lengths, 3).tolist(),
            "slowdown_ratio": round(state.slowdown, 3),
            "steps": self.steps,
            "choices": self.choices,
            "groups": self._explained(),
        }

    def _explained(self) -> list[dict[str, Any]]:
        """Return each group of the latest step with its K, and the worth of its positions."""
        choice, latest = self._choice, self._latest
        if choice.state is None or latest is None or choice.wishes is not latest.wishes:
            return []
        wishes, counts = latest.wishes, Counter(latest.groups)
        if not counts.keys() <= choice.k_of.keys():
            return []  # the next step chooses anew
        present = sorted(counts)
        groups = [_group(wishes, choice.state, code, counts[code]) for code in present]
        ks = [choice.k_of[code] for code in present]
        worth = worth_of(groups, choice.state.lengths, choice.state.prices, ks)
        return [
            {
                "classes": [name for name, at in wishes.of_class.items() if at == code >> _WISH_AT],
                "band": code & _BAND,
                "unprobed": bool(code & _UNPROBED),
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


def _said(worth: Worth, band: int) -> str:
    return (
        f"position {worth.position} of band {band} is worth {worth.tokens:.2f} tokens and costs {worth.cost_tokens:.2f}"
    )


def _chosen(state: State, wishes: Wishes, counts: Counter[int], near: int | None = None) -> _Choice:
    """Choose K for each band of the wishes of these decodes; `near`: of about that width, which takes less time."""
    n, present = counts.total(), sorted({code >> _WISH_AT for code in counts})
    unprobed = sum([count for code, count in counts.items() if code & _UNPROBED])
    flags = (_UNPROBED,) if unprobed > UNPROBED_RATIO * n else (0, _UNPROBED)  # in the first case told apart
    codes = tuple([wish << _WISH_AT | band for wish in present for band in range(BANDS)])
    decodes = [sum([counts[code | flag] for flag in flags]) for code in codes]
    ks = state.chooser(wishes, codes).choose(decodes, near)
    k_of = {code | flag: k for flag in flags for code, k in zip(codes, ks, strict=True)}
    if near is not None and not any(k_of.get(code, 1) for code in counts):  # a narrower drafter may pay
        return _chosen(state, wishes, counts)
    for code in counts.keys() - k_of.keys():
        [k_of[code]] = state.chooser(wishes, (code,)).choose([n])
    return _Choice(state, wishes, counts, k_of, max(k_of.values()))


def _group(wishes: Wishes, state: State, code: int, count: int = 0) -> Group:
    """Return so many decodes as a group, by its code."""
    wish, k_max = wishes.each[code >> _WISH_AT], state.lengths.shape[1] - 1
    high = min(wish.high, k_max)
    slo_s = wish.itl_slo_s / state.slowdown
    return Group(count, code & _BAND, wish.weight, min(wish.low, high), high, slo_s)


def _is_like(counts: Counter[int], choice: _Choice, n: int) -> bool:
    """Whether each group has a K, and few of `n` decodes changed their group, came or went since these were chosen.

    One that changes its group counts once, because only the groups that grew are summed; the decodes by which the batch
    shrank are added. Where nothing drafts, no K was chosen for empty groups: drafting for one of them alone may pay.
    """
    before = choice.counts
    if not counts.keys() <= (choice.k_of.keys() if choice.width else before.keys()):
        return False
    grown = sum([max(0, count - before[group]) for group, count in counts.items()])
    return grown + max(0, before.total() - n) <= MOVED_RATIO * n

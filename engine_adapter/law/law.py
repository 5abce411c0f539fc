"""The law of one engine: chooses K for the present batch from the engine's own counts and measured step times.

Two threads use it. The scheduler's thread asks for K once a step (`k_of`) and reports how many decodes the plan left
out (`note_plan`). The agent's thread adds evidence (`learn`) and computes prices and acceptance once a second
(`refresh`). It publishes them by replacing one reference, so the scheduler's thread sees the old state or the new one,
never a mixture.

K by group (`batch_choice`) is kept from step to step: a decode that changes its band has the K of the new band in the
next step. K is chosen anew in two cases. After each refresh the agent's thread chooses among all widths of the drafter.
When many decodes started, ended or changed their group (`MOVED_RATIO`), the scheduler's thread chooses among the widths
near the last one.

Drafts whose K was chosen before any draft of their request was verified do not count for their band, because they come
from a mixture of requests. With them, the band's acceptance would be too low for the requests that really belong to it.

The static K is in force until steps have been measured (`LEAST_STEPS`) and traffic has been seen: with K = 0 from the
start nothing would be learned from the first requests. If a controller has sent the fleet's acceptance, measured steps
are enough.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from specpilot.engine_adapter.evidence.acceptance import Acceptance
from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.law.acceptance import BandAcceptance
from specpilot.engine_adapter.law.batch_choice import WISH_AT, Choice, State, Wish, Wishes, chosen, explained, is_like
from specpilot.engine_adapter.law.cost import StepCost, features_of, step_s
from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.policy.graphs import Graphs
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.prices import PriceList, StepExtras
from specpilot.policy.schedule import Objective

Step = tuple[StepShape, float, int]
"""A step that has ended, its seconds, and the total length of its requests' sequences."""

LEAST_STEPS = 20
"""Steps that are measured before the law chooses K."""

RECENT_SHARE = 0.02
"""Weight of a step in the running means (share of steps that prefill, running decodes, context of a decode): a
memory of 50 steps."""

LEAST_DRAFTED_RATIO = 0.05
"""Least share of the decodes that a step drafts for by choice, so that its catching up counts for the price of leaving
requests out. With fewer, single requests would determine this price."""

LEFT_KEPT = 0.9995
"""The sums behind the price of leaving requests out are multiplied by this at each such step: a memory of 2,000
steps."""


class Request(Protocol):
    """The attributes of a decoding request that the law reads."""

    label: str
    acceptance: Acceptance


class _Latest(NamedTuple):
    """The groups of the latest step's decodes under these requirements; replaced as a whole."""

    wishes: Wishes
    groups: Sequence[int]


class EngineLaw:
    """The law of one engine that runs at most `most_running` decodes."""

    def __init__(
        self,
        k_max: int,
        static_k: int,
        most_running: int,
        graphs: Graphs | None = None,
    ) -> None:
        self.k_max, self.static_k = k_max, static_k
        self.state: State | None = None
        self.price_list: PriceList | None = None  # replaced as a whole, also before traffic is seen
        self.probe_prices: ProbePrices | None = None
        self.acceptance = BandAcceptance(k_max)
        self.cost = StepCost(graphs)
        self.choices = self.steps = 0  # on the scheduler's thread: choices made; steps in which K was read
        self.decode_s = 0.0  # of traffic's steps with decodes, except those of kind `catch_up`; without prefilling
        self._graphs = graphs
        self._most = most_running * (1 + k_max)
        self._extras = StepExtras()
        self._has_traffic = False
        self._decodes = 1.0  # mean of the latest steps
        self._left_out = 0.0  # sum over drafting steps: decodes left out, times the share drafted for
        self._later_s = 0.0  # seconds of catching up with these decodes
        self._latest: _Latest | None = None
        self.wish({})

    def wish(self, wishes: Mapping[str, Wish], objective: Objective = Objective.THROUGHPUT) -> None:
        """Use these requirements, by class, from now on; any other class has those of `default`."""
        found = {DEFAULT_CLASS: Wish(), **wishes}
        of = [*dict.fromkeys(found.values())]  # classes with the same requirements share one
        deepest = {
            name: 0 if wish.low >= wish.high else max(1, min(wish.high, self.k_max)) for name, wish in found.items()
        }
        self.wishes = Wishes(of, {name: of.index(wish) for name, wish in found.items()}, deepest, objective)
        self._latest, self._choice = None, Choice(None, self.wishes, Counter(), {})

    # The scheduler's thread

    def k_of(self, requests: Sequence[Request]) -> list[int]:
        """Return K of each of the requests that decode."""
        state, wishes = self.state, self.wishes
        wish_of, default = wishes.of_class, wishes.of_class[DEFAULT_CLASS]
        if state is None:
            static = [min(max(self.static_k, wish.low), wish.high, self.k_max) for wish in wishes.each]
            return [static[wish_of.get(request.label, default)] for request in requests]
        groups = [wish_of.get(request.label, default) << WISH_AT | request.acceptance.code for request in requests]
        self._latest = _Latest(wishes, groups)
        counts = Counter(groups)
        self.steps += 1
        choice = self._choice
        if choice.state is not state or choice.wishes is not wishes or not is_like(counts, choice, len(requests)):
            self.choices += 1
            is_alike = len(requests) <= 2 * choice.counts.total() <= 4 * len(requests)
            near = choice.width if is_alike and choice.width else None
            self._choice = choice = chosen(state, wishes, counts, near)
        k_of = choice.k_of
        return [k_of[group] for group in groups]

    def note_plan(self, decodes: int, drafted: int, rows: int) -> None:
        """Record a plan: K > 0 was chosen for `drafted` of the decodes, and these catch up with `rows` first.

        The rows are positions that earlier choices left out.
        """
        state = self.state
        if state is None or drafted < LEAST_DRAFTED_RATIO * decodes:
            return
        self._left_out = self._left_out * LEFT_KEPT + (decodes - drafted) * drafted / decodes
        spent = state.prices.reads_s + state.prices.read_s * rows if rows else 0.0
        self._later_s = self._later_s * LEFT_KEPT + spent

    # The agent's thread

    def learn(self, steps: Iterable[Step], evidence: Evidence | None = None) -> None:
        """Learn from steps that have ended, and from the counts of their drafts.

        `evidence` is `None` for calibration steps, whose drafts are not traffic.
        """
        ratio, tokens, context = self._extras
        for shape, seconds, length in steps:
            self.cost.note(shape, seconds, length)
            if evidence is not None and shape.decodes and (shape.prefill or not shape.read):
                self.decode_s += max(0.0, seconds - self._prefill_s(shape))
            ratio += RECENT_SHARE * ((shape.prefill > 0) - ratio)
            if shape.prefill:
                tokens += (shape.prefill - tokens) * (0.1 if tokens else 1.0)
            if shape.decodes:
                self._decodes += RECENT_SHARE * (shape.decodes - self._decodes)
                if not shape.prefill:
                    context += RECENT_SHARE * (length / shape.decodes - context)
        self._extras = StepExtras(ratio, tokens, context)
        if evidence is not None:
            self._has_traffic |= bool(evidence.drafts)
            trials, accepts = evidence.trials - evidence.first_trials, evidence.accepts - evidence.first_accepts
            self.acceptance.learn(trials, accepts)

    def _prefill_s(self, shape: StepShape) -> float:
        """Return the seconds of prefilling and catching up in a step that prefills, by the prices; 0 without prices."""
        found = self.price_list
        if not shape.prefill or found is None:
            return 0.0
        both = shape, shape._replace(prefill=0, read=0)
        whole, without = (step_s(found.coefficients, features_of(each, 0, self._graphs)) for each in both)
        return max(0.0, whole - without) * found.slowdown

    def refresh(self) -> None:
        """Compute prices and acceptance from the evidence so far. Takes some milliseconds."""
        if self.cost.steps < LEAST_STEPS:
            return
        coefficients = self.cost.fit()
        if coefficients is None:
            return
        left_s = self._later_s / self._left_out if self._left_out >= 1 else 0.0
        self.price_list = found = PriceList(coefficients, self._extras, left_s, self.cost.slowdown)
        prices = found.prices(self._most, self._graphs)
        probes = ProbePrices.of(prices, max(1, round(self._decodes)))
        self.probe_prices = probes
        if self._has_traffic or self.acceptance.has_prior:
            state, latest = State(self.acceptance.lengths(), prices, found.slowdown), self._latest
            if latest is not None and latest.groups and latest.wishes is self.wishes:
                self._choice = chosen(state, latest.wishes, Counter(latest.groups))
            self.state = state

    def described(self) -> dict[str, Any] | None:
        """Return the inputs and results of the choice as plain data; `None` before the first state.

        Call it on the scheduler's thread. It returns AL by band and K, the slowdown factor, and for each group of the
        latest step its K and why: the worth and the cost of its last draft position and of the next one.
        """
        state, choice, latest = self.state, self._choice, self._latest
        if state is None:
            return None
        counts = Counter(latest.groups) if latest is not None and latest.wishes is choice.wishes else Counter()
        return {
            "acceptance_lengths": np.round(state.lengths, 3).tolist(),
            "slowdown_ratio": round(state.slowdown, 3),
            "steps": self.steps,
            "choices": self.choices,
            "groups": explained(choice, counts),
        }

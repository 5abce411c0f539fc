"""The law of one engine: chooses K for the present batch from the engine's own counts and measured step times.

Two threads use it. The scheduler's thread asks for K in each step that it plans (`k_of`) and reports how many decodes
the plan left out (`note_plan`). The exporter's thread adds evidence (`learn`) and computes prices and acceptance once a
second (`refresh`). It publishes them as one object, `estimates`, so the scheduler's thread sees the old ones or the new
ones, never a mixture.

`batch_choice` chooses K of each group of the batch. K by group is kept from step to step: a
decode that changes its band has the K of the new band in the next step. K is chosen anew

- by the exporter's thread after each refresh, among all widths of the drafter;
- by the scheduler's thread if the estimates or the guidance are new, or if many decodes started, ended or changed their
  group (`batch_choice.is_like`). It compares the widths near the last one, and all widths in three cases: the last
  width was 0; the number of decodes has more than halved or more than doubled since the last choice; or the widths near
  the last one give K = 0 for all groups.

When traffic changes, each input of the choice, and of the price of a probe, follows with its own memory. The number of
decodes of the present step is exact.

| input | memory | defined in |
|---|---|---|
| acceptance of a request, and so its band | 10 drafts, weighted by their trials | `evidence.request_acceptance` |
| band in which similar requests start | 5 drafts of each of 10 requests | `evidence.request_acceptance` |
| AL by band and position | 2,000 trials | `policy.acceptance.MEMORY_TRIALS` |
| prices of a step | 400 steps of a cell | `price_fit.CELL_STEPS` |
| slowdown factor | 20 steps up, 100 steps down to 1 | `price_fit.SLOWDOWN_SHARE`, `SLOWDOWN_DECAY` |
| share of steps that prefill; mean context of a decode | 50 steps | `RECENT_SHARE` |
| running decodes (only for the price of a probe) | 50 steps | `RECENT_SHARE` |
| prefilled tokens of a step that prefills | 10 such steps | `PREFILL_SHARE` |
| price of leaving requests out | 2,000 steps | `LEFT_OUT_DECAY` |

The first two change K in the next step, the others with the next refresh (`agent.learning.REFRESH_S`).

Until its first draft is verified, a request is in the band in which similar requests start, although its own text may
belong to another band. Drafts whose K was chosen before that do not count in this law's acceptance of the band, because
they would bias it. The exported counts, and so the fleet's acceptance, contain them.

The law chooses nothing until steps have been measured (`LEAST_STEPS`) and traffic has been seen: with K = 0 from the
start nothing would be learned from the first requests. If a controller has sent the fleet's acceptance, measured steps
are enough. Until then K is the static K within the bounds.

Questions about K and about another guidance are answered from the same estimates, by a third thread (`forecast`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.law.band_acceptance import BandAcceptance
from specpilot.engine_adapter.law.batch_choice import (
    Choice,
    Estimates,
    Requirements,
    chosen,
    is_like,
    k_of_every_group,
)
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT, Contexts
from specpilot.engine_adapter.law.explained import explained
from specpilot.engine_adapter.law.forecast import Outlook, outlook
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.latest_batch import HeldK, LatestBatch, Request
from specpilot.engine_adapter.law.price_fit import LONG_CONTEXT, StepCost, features_of, step_s
from specpilot.engine_adapter.law.prices import Prices, StepExtras
from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import Guidance

EndedStep = tuple[StepShape, float, int]
"""A step that has ended, its seconds, and the total length of its requests' sequences."""

LEAST_STEPS = 20
"""Steps that are measured before the law chooses K."""

RECENT_SHARE = 0.02
"""Weight of a step in the running means (share of steps that prefill, running decodes, context of a decode): a
memory of 50 steps."""

PREFILL_SHARE = 0.1
"""Weight of a step that prefills in the mean number of its prefilled tokens: a memory of ten such steps."""

LEAST_DRAFTED_RATIO = 0.05
"""A step contributes to the price of leaving requests out only if K > 0 was chosen for at least this share of its
decodes. With fewer, single requests would determine this price."""

LEFT_OUT_DECAY = 0.9995
"""Both sums behind the price of leaving requests out are multiplied by this in each step that contributes to them: a
memory of 2,000 steps."""

NO_GUIDANCE = Guidance()
"""Used before any guidance: no bounds."""


class EngineLaw:
    """The law of one engine that runs at most `max_running` decodes; `least_width`, `narrowest`: as in `Prices`."""

    def __init__(  # noqa: PLR0913, PLR0917 - the facts of an engine
        self,
        k_max: int,
        static_k: int,
        max_running: int,
        graphs: Graphs | None = None,
        least_width: int | None = None,
        narrowest: int = 1,
    ) -> None:
        self.k_max, self.static_k = k_max, static_k
        self.own_static_k = static_k
        self.outlook = Outlook()  # what the choice means for bounds on latency
        self.estimates: Estimates | None = None
        self.prices: Prices | None = None  # replaced as a whole, also before traffic is seen
        self.probe_prices: ProbePrices | None = None
        self.acceptance = BandAcceptance(k_max)
        self.cost = StepCost(graphs)
        self.choices = self.steps = 0  # on the scheduler's thread: choices made; steps in which K was read
        self.decode_s = 0.0  # steps of traffic with decodes, less the time of prefilling; `catch_up` steps excluded
        self._graphs, self._widths = graphs, (least_width, narrowest)
        self._most = max_running * (1 + k_max)
        self._extras = StepExtras()
        self._slowdown = 1.0  # at the latest refresh
        self._has_traffic = False
        self._decodes = 1.0  # mean of the latest steps
        self._left_out = 0.0  # sum over steps that draft: decodes left out, times the share of decodes drafted for
        self._catch_up_s = 0.0  # seconds in which these decodes caught up
        self._latest: LatestBatch | None = None
        self._held: HeldK | None = None
        self.follow(NO_GUIDANCE)

    def follow(self, guidance: Guidance) -> None:
        """Use this guidance from now on; its override is not the law's."""
        self.guidance = guidance
        self.static_k = self.own_static_k if guidance.static_k is None else min(guidance.static_k, self.k_max)
        self.requirements = Requirements.of(guidance, self.k_max)
        self._latest = self._held = None
        if not self.requirements.has_bounds:  # otherwise until the next refresh
            self.outlook = Outlook()
        self._choice = Choice(None, self.requirements, Counter(), {})  # both threads replace it, as a whole

    @property
    def is_held(self) -> bool:
        """Whether K of each group is kept as it was."""
        return self._held is not None

    def hold(self, *, is_held: bool, between: Callable[[], None] = lambda: None) -> None:
        """Keep K of each group as it is from now on, or choose again; without enough evidence the static K is kept.

        An empty group gets the K of a decode that would change to it, if all decodes of the latest batch were of its
        class. Without a batch since the guidance changed, K is chosen once more.
        """
        estimates, choice = self.estimates, self._choice
        if not is_held:
            self._held = None
        elif self._held is None and estimates is None:
            self._held = HeldK(self.requirements, {})
        elif self._held is None and estimates is not None and choice.counts:
            estimates = choice.estimates or estimates  # by whose contexts the groups are
            every = k_of_every_group(estimates.apart(between), choice.requirements, choice.counts)
            present = {code: choice.k_of[code] for code in choice.counts}
            self._held = HeldK(choice.requirements, {**every, **present}, estimates.contexts)

    # The scheduler's thread

    def k_of(self, requests: Sequence[Request]) -> list[int]:
        """Return K of each of the requests that decode."""
        estimates, requirements, held = self.estimates, self.requirements, self._held  # another thread replaces them
        index_of, default = requirements.index_of, requirements.index_of[DEFAULT_CLASS]
        held_k = held.k_of if held is not None and held.requirements is requirements else None
        if held_k == {} or (estimates is None and held_k is None):
            static = [min(max(self.static_k, item.k_min), item.k_max, self.k_max) for item in requirements.distinct]
            return [static[index_of.get(request.label, default)] for request in requests]
        codes = [
            index_of.get(request.label, default) << REQUIREMENT_AT | request.acceptance.code for request in requests
        ]
        self._latest = latest = LatestBatch(requirements, codes, requests)
        self.steps += 1
        if held is not None and held_k is not None:
            return [held_k[group] for group in held.groups(latest)]
        assert estimates is not None
        groups = latest.groups(estimates.contexts)
        counts = Counter(groups)
        choice = self._choice
        is_current = choice.estimates is estimates and choice.requirements is requirements
        if not is_current or not is_like(counts, choice, len(requests)):
            self.choices += 1
            is_alike = len(requests) <= 2 * choice.counts.total() <= 4 * len(requests)
            last = choice if is_alike and choice.width else None  # otherwise the best width may be far from the last
            self._choice = choice = chosen(estimates, requirements, counts, last)
        k_of = choice.k_of
        return [k_of[group] for group in groups]

    def note_plan(self, decodes: int, drafted: int, backlog_rows: int) -> None:
        """Record a plan.

        `drafted`: the number of decodes for which K > 0 was chosen. `backlog_rows`: the rows that these decodes
        catch up now. A row counts only if the step that left it drafted for other requests.
        """
        estimates = self.estimates
        if estimates is None or drafted < LEAST_DRAFTED_RATIO * decodes:
            return
        self._left_out = self._left_out * LEFT_OUT_DECAY + (decodes - drafted) * drafted / decodes
        prices = estimates.prices
        catch_up_s = prices.reads_s + prices.read_s * backlog_rows if backlog_rows else 0.0
        self._catch_up_s = self._catch_up_s * LEFT_OUT_DECAY + catch_up_s

    # The exporter's thread

    def learn(
        self, steps: Iterable[EndedStep], evidence: Evidence | None = None, between: Callable[[], None] = lambda: None
    ) -> None:
        """Learn from steps that have ended, and from the counts of their drafts.

        `evidence` is `None` for calibration steps, whose drafts are not traffic. `between` is called between two parts
        of the computation.
        """
        latest = self._latest
        self.cost.has_long |= latest is not None and max(latest.lengths, default=0) >= LONG_CONTEXT
        ratio, tokens, context = self._extras
        for shape, seconds, length in steps:
            self.cost.note(shape, seconds, length)
            if evidence is not None and shape.decodes and (shape.prefill or not shape.read):
                self.decode_s += max(0.0, seconds - self._prefill_s(shape))
            ratio += RECENT_SHARE * ((shape.prefill > 0) - ratio)
            if shape.prefill:
                tokens += (shape.prefill - tokens) * (PREFILL_SHARE if tokens else 1.0)
            if shape.decodes:
                self._decodes += RECENT_SHARE * (shape.decodes - self._decodes)
                if not shape.prefill:
                    context += RECENT_SHARE * (length / shape.decodes - context)
            between()
        self._extras = StepExtras(ratio, tokens, context)
        if evidence is not None:
            self._has_traffic |= bool(evidence.drafts)
            trials, accepts = evidence.trials - evidence.first_trials, evidence.accepts - evidence.first_accepts
            self.acceptance.learn(trials, accepts)

    def _prefill_s(self, shape: StepShape) -> float:
        """Return the seconds of prefilling and catching up in a step that prefills, by the prices; 0 without prices."""
        prices = self.prices
        if not shape.prefill or prices is None:
            return 0.0
        both = shape, shape._replace(prefill=0, read=0)
        whole, without = (step_s(prices.coefficients, features_of(each, 0, self._graphs)) for each in both)
        return max(0.0, whole - without) * self._slowdown

    def refresh(self, between: Callable[[], None] = lambda: None) -> None:
        """Compute prices and acceptance from the evidence so far, and choose K anew, in about a millisecond.

        `between` is called between two parts of the computation.
        """
        if self.cost.steps < LEAST_STEPS:
            return
        coefficients, latest = self.cost.fit(between), self._latest
        if coefficients is None:
            return
        left_out_s = self._catch_up_s / self._left_out if self._left_out >= 1 else 0.0
        between()
        prices = Prices(coefficients, self._most, self._graphs, self._extras, left_out_s, *self._widths)
        self.prices, self._slowdown = prices, self.cost.slowdown
        self.probe_prices = ProbePrices.of(prices, max(1, round(self._decodes)), self.k_max)
        between()
        if self._has_traffic or self.acceptance.has_prior:
            contexts = Contexts.of(prices, max(1, round(self._decodes)), latest.lengths if latest is not None else ())
            estimates = Estimates(self.acceptance.lengths(), prices, self._slowdown, contexts)
            if latest is not None and latest.codes and latest.requirements is self.requirements:
                counts = Counter(latest.groups(contexts))
                choice = chosen(replace(estimates, pause=between), latest.requirements, counts)
                between()
                self.outlook = outlook(choice, self.static_k)
                self._choice = choice._replace(estimates=estimates)
            self.estimates = estimates

    def described(self) -> dict[str, Any] | None:
        """Return the inputs and results of the choice as plain data; `None` before the first estimates.

        It returns AL by band and K, the slowdown factor, and for each group of the
        latest step its K and why: the worth and the cost of its last draft position and of the next one.
        """
        estimates = self.estimates
        if estimates is None:
            return None
        return {
            "acceptance_lengths": np.round(estimates.lengths, 3).tolist(),
            "slowdown_ratio": round(estimates.slowdown, 3),
            "steps": self.steps,
            "choices": self.choices,
            "groups": self.groups(),
        }

    def groups(self, between: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Return for each group of the latest step its K and why, as plain data; any thread may call.

        The list is empty without a choice by the present requirements.
        """
        choice, latest, held, estimates = self._choice, self._latest, self._held, self.estimates
        if held is not None and held.k_of:
            choice = Choice(estimates, held.requirements, Counter(), held.k_of)
        if latest is None or latest.requirements is not choice.requirements:
            return []
        if held is not None and held.k_of:
            return explained(choice, Counter(held.groups(latest)), between)
        contexts = choice.estimates.contexts if choice.estimates is not None else Contexts()
        return explained(choice, Counter(latest.groups(contexts)), between)

"""Probes: drafts for requests whose scheduled K is 0, so that their acceptance stays known. Pure.

At K = 0 no draft is verified, so nothing would show that a text has become predictable. A *probe* is one draft for one
such request. Only classes whose K depends on the band are probed. A pinned class is not: no probe could change its K.

*Depth.* If the step has a width above 0 without the probe, because it drafts or its drafter must run in every step, the
probe has as many tokens as this width. Otherwise it has `PARALLEL_PROBE` or `SEQUENTIAL_PROBE` tokens, because in such
a step the fixed cost dominates and one draft has to show whether the request is predictable. It is never deeper than
the largest K of its class, the request's ceiling, or the room of the step.

*Cost* by the engine's own prices (`law.probe_prices`); the unit is the time of a step that drafts nothing:

    cost = fixed + (backlog + 1 + 2 width) position + k token

    fixed = 0           if the step drafts without the probe, or already has another probe
            verifying   for a drafter that must run in every step: the extra time of the step that verifies
            beside      for due probes, if the drafter reads a due request's prompt anyway: `verifying`, plus what
                        drafting adds to this pass. All decodes with several positions in the step get slots in
                        this pass, so `beside` contains the slots of the others
            drafting    otherwise: `verifying`, plus a pass of the drafter

In the step of the probe the drafter reads the backlog and the request's position, and prepares `width` slots. In the
next step it reads the verified draft: at most `width` positions. These costs are predictions; no probe is timed.
Every request of the two steps waits for this time; only the probed request can gain tokens by it. There is one budget
for the engine, not one for each class or request.

*Budget.* Each step with tokens adds `probe_ratio` of the time of a step to the budget. The policy sets `probe_ratio`
(`policy.model_policy`, 0.005 by default), without a schedule the engine's settings. Time without a request counts like
busy time; time in which all requests wait, such as for a grammar, does not count. The budget is at most the cost of the
most expensive probe, the *limit*. While the prices are unknown there are no probes.

    charges in a time T <= probe_ratio T + limit + D + F

D is the largest debt at which a follow-up may start: `_FOLLOW_UP_DEBT` times `drafting`, at most the limit. F is the
charge of one follow-up. Free first drafts (1) come in addition, at most one for each request. A probe alone in its step
costs about two steps with the demo pair on two CPU cores, so at a `probe_ratio` of 0.005 one runs every 400 steps.

`choose` takes three kinds in this order:

1. *First drafts*, in a step that drafts without them, are free up to a time of `_FREE_STEPS`, for requests with at most
   `FIRST_DRAFT_ROWS` rows. Until its first draft a request is in the band in which similar requests start. If K is 0 in
   this band, requests could end before any of their drafts is verified. With free first drafts, as soon as steps draft
   for one predictable request, others get one draft too.
2. *Follow-ups*: the last probe was accepted whole, and the band is not the highest. Follow-ups are charged, and may
   overdraw the budget: one may start while the debt is at most D.
3. *Due probes*: the request's last draft was planned at least `PROBE_AFTER` steps ago (a request without a draft is due
   at once). They must fit into the budget and are taken by backlog, smallest first. This favours new requests and those
   probed recently. A step drafts for probes alone only when the budget holds `_FIXED_COSTS` times the fixed cost, or is
   at the limit, so that one step probes several requests. After a second without any draft, the cost of one probe is
   enough, so that a change of traffic is found sooner.

   While requests arrive steadily, prompts must not use up the whole budget, because the text of running requests may
   change. So there is a second budget for prompts. It earns `PROMPT_SHARE` of what the first one earns and has the same
   limit. In a step that drafts nothing else and in which the drafter reads a due request's prompt, the probe of a
   request with a prompt must fit into both budgets.
"""

import math
from collections.abc import Callable, Sequence

from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan.catch_up import backlog_of, may_be_deferred
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.speculation_control import KTable

PROBE_AFTER = 16
"""Steps after its last planned draft from which on a request at K = 0 is due for a probe. In closed-loop replay
a change in the text was noticed 10 to 14 steps after it. More frequent probes cost more than they gain."""

FIRST_DRAFT_ROWS = 64
"""A request's first draft is free if its backlog has at most so many rows. Such a draft takes a quarter of a step at
most. With a larger bound, requests that started while nothing was drafted get one too. With a smaller bound, text that
is unpredictable throughout costs less. In simulation with replies of 150 tokens without labels, 3 of 12 or 8 of 16 of
them predictable, throughput with free first drafts is 1.11 to 1.19 times that with first drafts charged to the budget.
16 and 1,000 as the value of this constant give the same. With labels, or if all text is unpredictable, the ratio is
0.97 to 1.00."""

PARALLEL_PROBE = 4
"""Depth of a probe if nothing else is drafted and the drafter drafts in parallel. A larger depth finds predictable
requests sooner, and verifies more tokens of the others. In simulation 4 to 7 make no difference."""

PROMPT_SHARE = 0.75
"""Share of the budget's income that probes of requests with a prompt may spend in steps that draft nothing else and in
which the drafter reads a due request's prompt (one longer than `DEFERRED_PROMPT`). Such a probe costs less, and its
outcome counts for all similar requests. But only the other probes detect that the text of a running request has
changed."""

_FREE_STEPS = 1.0
"""Longest time of the free first drafts of a step; the unit is a step that drafts nothing."""

_FOLLOW_UP_DEBT = 3.0
"""Largest debt of the budget at which a follow-up may still start, in multiples of `drafting`. A larger debt delays the
next probe while nothing is drafted, a smaller one the follow-ups. In a
simulation of the demo pair the traffic changed from code to 12 JSON requests. The change was noticed within 0 to 2 s
with the value 3, 1 to 4 s with the value 2, and 0 to 5 s when the debt could be as large as the budget."""

_FIXED_COSTS = 2.0
"""A step drafts for probes alone only if the budget holds this multiple of the fixed cost. So half of this budget can
pay for the requests themselves, and several of them share one fixed cost."""


DepthOf = Callable[[DraftState], int]
"""Returns the depth of a request's probe in the current step."""


class Probes:
    """The budget of one engine's probes, and the choice of the requests that are probed.

    `k_max` and `catch_up_rows` determine the most expensive probe. `keeps_rows`: a step without drafts adds to the
    backlogs. `prices` are those of the current step; `None`: unknown. `budget` is the time that probes may take now, in
    steps that draft nothing; below 0 it is a debt. The planner sets `drafted_at`, the number of the last step that
    drafted.
    """

    def __init__(self, k_max: int, catch_up_rows: int, *, keeps_rows: bool = True) -> None:
        self.prices: ProbePrices | None = None
        self.budget = 0.0
        self.drafted_at = 0
        self._k_max = k_max
        self._rows_per_step = catch_up_rows
        self._row_a_step = int(keeps_rows)
        self._prompt_budget = 0.0  # the second budget: for prompts in steps that draft nothing else
        self._charges: dict[str, float] = {}  # in the current step, by request

    @property
    def limit(self) -> float:
        """The largest budget: the cost of the most expensive probe; 0 without prices."""
        prices = self.prices
        if prices is None:
            return 0.0
        return prices.drafting + prices.of_draft(self._rows_per_step, self._k_max, self._k_max)

    def earn(self, probe_ratio: float, steps: float) -> None:
        """Add the share of `steps` steps, busy or idle, to the budget."""
        limit = self.limit
        self.budget = min(self.budget + steps * probe_ratio, limit)
        self._prompt_budget = min(self._prompt_budget + steps * probe_ratio * PROMPT_SHARE, limit)

    def start_step(self, prices: ProbePrices | None, probe_ratio: float) -> None:
        """Start planning a step, with these prices."""
        self.prices = prices
        self.earn(probe_ratio, 1)
        if self._charges:
            self._charges.clear()

    def choose(  # noqa: PLR0913 - the step's facts
        self, states: Sequence[DraftState], table: KTable, step: int, width: int, depth: int, *, is_drafting: bool
    ) -> int:
        """Set `k` of the requests that step number `step` probes, each at most `depth` deep; return the step's width.

        `width` is the step's width without probes, and `is_drafting` whether it drafts without them. For a drafter that
        must run in every step the width is above 0 even if no request has a draft.
        """
        prices = self.prices
        if prices is None:
            return width

        def depth_of(state: DraftState) -> int:
            return min(depth, probe_depth(state, table))

        candidates = [state for state in states if state.k == 0 and probe_depth(state, table)]
        if is_drafting:
            _draft_first(candidates, prices, width, depth_of)  # 1
        fixed = 0.0 if is_drafting else prices.verifying if width else prices.drafting
        width, fixed = self._follow_up(candidates, prices, width, fixed, depth_of)  # 2
        due = [state for state in candidates if state.k == 0 and step >= _due_at(state)]
        reads_prompts = width == 0 and any(state.positions > 1 and not may_be_deferred(state) for state in due)
        if reads_prompts:
            others = sum([state.positions > 1 for state in states]) - 1  # they get slots too
            fixed = prices.beside_prompt + others * depth * prices.position
        return self._probe_due(due, prices, step, width, fixed, depth_of, reads_prompts=reads_prompts)  # 3

    def refund(self, request_id: str) -> None:
        """Credit the budget with the charge of a postponed probe, without the fixed cost of its step."""
        self.budget += self._charges.get(request_id, 0.0)

    def steps_until_next(self, probed: Sequence[DraftState], probe_ratio: float, step: int) -> int:
        """Return the number of steps after `step` in which no probe of `probed` can start.

        In these steps no due probe can start, because none is due or the budget is too small. No follow-up can start
        either, because the debt is too large.
        """
        prices, limit = self.prices, self.limit
        most = self._rows_per_step  # after these a backlog has to catch up anyway
        if prices is None:
            return most
        until_out_of_debt = most
        if any(state.needs_follow_up for state in probed):
            until_out_of_debt = _steps_to_earn(self._debt_limit(prices) - self.budget, probe_ratio, most)
        until_due = min(_due_at(state) for state in probed) - step - 1
        until_step_starts = _steps_to_earn(min(_FIXED_COSTS * prices.drafting, limit) - self.budget, probe_ratio, most)
        # Each step adds one position to the backlog and so to the probe's cost. A step is planned before its own
        # position joins the backlog, so the first step sees one position less.
        gained = probe_ratio - self._row_a_step * prices.position
        rows = min(map(backlog_of, probed)) - self._row_a_step
        missing = prices.drafting + prices.of_draft(rows, 1, 1) - self.budget
        until_affordable = 0
        if missing > 0:
            until_affordable = math.ceil(missing / gained) - 1 if gained > 0 else most
        until_undrafted = math.ceil(min(self.drafted_at + prices.steps_per_s - step, float(most))) - 1
        until_step_starts = min(until_step_starts, until_undrafted)
        return min(until_out_of_debt, max(until_due, until_step_starts, until_affordable))

    def _debt_limit(self, prices: ProbePrices) -> float:
        """Return the budget below which no follow-up starts."""
        return max(-self.limit, -_FOLLOW_UP_DEBT * prices.drafting)

    def _follow_up(
        self, candidates: Sequence[DraftState], prices: ProbePrices, width: int, fixed: float, depth_of: DepthOf
    ) -> tuple[int, float]:
        """Probe the candidates whose last probe was accepted whole.

        Return the step's width, and the fixed cost that a further probe of this step has.
        """
        for state in [state for state in candidates if state.k == 0 and state.needs_follow_up]:
            if self.budget < self._debt_limit(prices):
                break
            state.k = depth_of(state)
            width = max(width, state.k)
            self._charge(state, fixed, prices.of_draft(state.backlog, width, state.k))
            fixed = 0.0  # paid once a step
        return width, fixed

    def _probe_due(  # noqa: PLR0913, PLR0917 - the step's facts
        self,
        due: Sequence[DraftState],
        prices: ProbePrices,
        step: int,
        width: int,
        fixed: float,
        depth_of: DepthOf,
        *,
        reads_prompts: bool,
    ) -> int:
        """Probe requests that are due, within the budget; return the step's width."""
        is_undrafted = step - self.drafted_at >= prices.steps_per_s
        if self.budget < min(_FIXED_COSTS * fixed, self.limit) and not is_undrafted:
            return width
        for state in sorted(due, key=backlog_of):
            k = depth_of(state)
            draft_cost = prices.of_draft(state.backlog, max(width, k), k)
            if fixed + draft_cost > self.budget:
                break
            if reads_prompts and state.positions > 1:
                if fixed + draft_cost > self._prompt_budget:
                    continue
                self._prompt_budget -= fixed + draft_cost
            self._charge(state, fixed, draft_cost)
            fixed = 0.0
            state.k = k
            width = max(width, k)
        return width

    def _charge(self, state: DraftState, fixed: float, draft_cost: float) -> None:
        self.budget -= fixed + draft_cost
        self._charges[state.request_id] = draft_cost


def may_probe(state: DraftState, table: KTable) -> bool:
    """Whether a request is ever probed under this schedule."""
    return table.probe_ratio > 0.0 and probe_depth(state, table) > 0


def probe_depth(state: DraftState, table: KTable) -> int:
    """Return the largest depth of a probe of a request; 0: it is never probed."""
    return min(table.probe_depth(state.traffic_class), state.ceiling)


def _draft_first(candidates: Sequence[DraftState], prices: ProbePrices, width: int, depth_of: DepthOf) -> None:
    """Draft for the candidates that never had a draft, in a step of this `width`."""
    room = _FREE_STEPS
    for state in candidates:
        k = depth_of(state)
        cost = prices.of_draft(state.backlog, width, k)
        if state.drafted_at is None and state.backlog <= FIRST_DRAFT_ROWS and cost <= room:
            room -= cost
            state.k = k


def _due_at(state: DraftState) -> int:
    """Return the number of the step from which on a probe of a request is due."""
    return 0 if state.drafted_at is None else state.drafted_at + PROBE_AFTER


def _steps_to_earn(missing: float, probe_ratio: float, most: int) -> int:
    """Return the number of steps, at most `most`, before the budget has grown by `missing`."""
    return math.ceil(min(missing / probe_ratio, float(most))) - 1 if missing > 0 else 0

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
   probed recently. In a step that drafts nothing else there are two more conditions:

   a. The budget holds `_FIXED_COSTS` times the fixed cost, or is at the limit, so that one step probes several
      requests. After a second without any draft, the cost of one probe is enough, so that a change of traffic is found
      sooner.
   b. The number of the step is a multiple of `PROBE_AFTER`, so that the steps between need no plan
      (`plan.repetition`); or the drafter reads a due request's prompt in this step anyway.

   While requests arrive steadily, probes beside prompts must not use up the whole budget, because the text of running
   requests may change. So they may spend `PROMPT_LIMITS` limits between two probes of running requests; then no
   request with a prompt is probed while another one is due.
"""

from collections.abc import Sequence

from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan.catch_up import may_be_deferred
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

PROMPT_LIMITS = 0.5
"""What probes beside prompts may spend between two probes of running requests, in multiples of the limit. A probe
beside a prompt (one longer than `DEFERRED_PROMPT`) costs less, and its outcome counts for all similar requests. But
only the other probes detect that the text of a running request has changed."""

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

_Candidate = tuple[DraftState, int]
"""A request that may be probed in the current step, and the depth of its probe."""


class Probes:
    """The budget of one engine's probes, and the choice of the requests that are probed.

    `k_max` and `catch_up_rows` determine the most expensive probe. `prices` are those of the current step; `None`:
    unknown. `budget` is the time that probes may take now, in steps that draft nothing; below 0 it is a debt. The
    planner sets `drafted_at`, the number of the last step that drafted.
    """

    def __init__(self, k_max: int, catch_up_rows: int) -> None:
        self.prices: ProbePrices | None = None
        self.budget = 0.0
        self.drafted_at = 0
        self._k_max = k_max
        self._catch_up_rows = catch_up_rows
        self._spent_on_prompts = 0.0  # since the last probe of a running request
        # Of the current step: its width so far, the fixed cost of the next probe, and the other charges by request.
        self._width = 0
        self._fixed = 0.0
        self._charges: dict[str, float] = {}

    @property
    def limit(self) -> float:
        """The largest budget: the cost of the most expensive probe; 0 without prices."""
        prices = self.prices
        if prices is None:
            return 0.0
        return prices.drafting + prices.of_draft(self._catch_up_rows, self._k_max, self._k_max)

    def earn(self, probe_ratio: float, steps: float) -> None:
        """Add the share of `steps` steps, busy or idle, to the budget."""
        self.budget = min(self.budget + steps * probe_ratio, self.limit)

    def start_step(self, prices: ProbePrices | None, probe_ratio: float) -> None:
        """Start planning a step, with these prices."""
        self.prices = prices
        self.earn(probe_ratio, 1)
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
        self._width = width
        self._fixed = 0.0 if is_drafting else prices.verifying if width else prices.drafting
        candidates = [
            (state, min(depth, deepest)) for state in states if not state.k and (deepest := probe_depth(state, table))
        ]
        if is_drafting:
            _draft_first(candidates, prices, width)  # 1
        largest_debt = min(self.limit, _FOLLOW_UP_DEBT * prices.drafting)
        for state, k in candidates:  # 2
            if state.needs_follow_up and not state.k and self.budget >= -largest_debt:
                self._probe(state, k, prices)
        due = [(state, k) for state, k in candidates if not state.k and step >= _due_at(state)]
        self._probe_due(due, states, step, depth)
        return self._width

    def refund(self, request_id: str) -> None:
        """Credit the budget with the charge of a postponed probe, without the fixed cost of its step."""
        self.budget += self._charges.get(request_id, 0.0)

    def _probe_due(self, due: Sequence[_Candidate], states: Sequence[DraftState], step: int, depth: int) -> None:
        """Probe requests of `due` within the budget (3)."""
        prices = self.prices
        assert prices is not None
        if not self._width:
            if any(state.positions > 1 and not may_be_deferred(state) for state, _ in due):
                others = sum([state.positions > 1 for state in states]) - 1  # they get slots too
                self._fixed = prices.beside_prompt + others * depth * prices.position
                running = [item for item in due if item[0].positions == 1]
                if running and self._spent_on_prompts >= PROMPT_LIMITS * self.limit:
                    due = running
            elif step % PROBE_AFTER:  # 3b
                return
        if self.budget < min(_FIXED_COSTS * self._fixed, self.limit) and step - self.drafted_at < prices.steps_per_s:
            return  # 3a
        cheapest = sorted(due, key=lambda item: prices.of_draft(item[0].backlog, 0, 1, item[0].context))
        for state, k in cheapest:
            if self._fixed + prices.of_draft(state.backlog, max(self._width, k), k, state.context) > self.budget:
                break
            self._probe(state, k, prices)

    def _probe(self, state: DraftState, k: int, prices: ProbePrices) -> None:
        """Probe a request. It pays the fixed cost of the step, which further probes of the step share."""
        self._width = max(self._width, k)
        charge = prices.of_draft(state.backlog, self._width, k, state.context)
        self._charges[state.request_id] = charge
        cost, self._fixed = self._fixed + charge, 0.0
        self.budget -= cost
        self._spent_on_prompts = self._spent_on_prompts + cost if state.positions > 1 else 0.0
        state.k = k


def steps_until_next(probed: Sequence[DraftState], step: int) -> int:
    """Return the number of steps after `step` in which no probe of `probed` can start if they draft nothing else."""
    if any(state.needs_follow_up for state in probed):
        return 0
    return -(step + 1) % PROBE_AFTER


def may_probe(state: DraftState, table: KTable) -> bool:
    """Whether a request is ever probed while `table` is in force."""
    return table.probe_ratio > 0.0 and probe_depth(state, table) > 0


def probe_depth(state: DraftState, table: KTable) -> int:
    """Return the largest depth of a probe of a request; 0: it is never probed."""
    return min(table.probe_depth(state.traffic_class), state.ceiling)


def _draft_first(candidates: Sequence[_Candidate], prices: ProbePrices, width: int) -> None:
    """Draft for the candidates that never had a draft, in a step of this `width` (1)."""
    room = _FREE_STEPS
    for state, k in candidates:
        cost = prices.of_draft(state.backlog, width, k, state.context)
        if state.drafted_at is None and state.backlog <= FIRST_DRAFT_ROWS and cost <= room:
            room -= cost
            state.k = k


def _due_at(state: DraftState) -> int:
    """Return the number of the step from which on a probe of a request is due."""
    return 0 if state.drafted_at is None else state.drafted_at + PROBE_AFTER

"""Plans the drafts that follow a step: K of each request, the drafter's width, and which requests catch up.

The plan is made when vLLM has scheduled a step. The drafter runs at the end of this step; the next step verifies K
draft tokens of each request.

Pure and deterministic. K depends on class, band, load and past steps, never on the draft tokens that are cut, so the
output keeps the target's distribution. A band reflects known outcomes only: not those of the step under way, and in
vLLM's asynchronous loop not those of the step before it either.

From counts to the draft tokens of a request:

    `steps.Steps.note_draft`          the outcome of each draft moves the request's band (`evidence.request_acceptance`)
    `law.law.EngineLaw.learn`         takes counts and step times, four times a second (`agent.learning`)
    `law.law.EngineLaw.refresh`       computes acceptance by band, and prices, once a second
    `law.law.EngineLaw.k_of`          returns K of the request's group: class requirements, band, probed or not
      `law.batch_choice`              has chosen K of all groups for the largest worth of a step
    `Planner.plan`                    cuts it (`chosen_k`), then adds a probe or postpones the draft (`k`)
    `vllm.scheduler`                  cuts the draft to `k` tokens: `_place` with asynchronous scheduling, else
                                      `update_draft_token_ids`

A grammar may cut a draft further, and on model runner V2 vLLM's adaptive verification (`vllm.verified_tokens`).

`Planner.plan` runs in each step that does not repeat the last one (`plan.steps`). It determines K of each request in
this order (the code has the same numbers):

1. *Budget.* A share of the step's time is added to the budget for probes (`plan.probes`).
2. *Room.* The largest K with which all running requests fit into vLLM's next step (`plan.step_room`). If vLLM will not
   draft, because a request is too long for the drafter, K is 0 for all, without 4 and 5.
3. *Scheduled K*, cut to the request's ceiling and to the room:
   3a. normally the K that the engine's law chooses for the decodes of this step (`law.law`);
   3b. under a table without a law (`plan.speculation_control`), that of the request's class.
4. *Width*: the largest K of the step, at least `least_width`. A parallel drafter has one buffer for its slots and for
   the tokens of the step under way. vLLM scheduled these tokens before the width was known. If the slots do not fit
   into the rest of the buffer, every K is cut to the width that fits. From the next step on vLLM keeps room for
   `next_width`, so K is cut for this reason only in a step in which K rises.
5. *Probes.* Some requests at K = 0 get a draft, so that their acceptance stays known. `plan.probes` describes the
   choice of these requests, and the cost of a probe. Where all decodes of a step need one K, all are probed in one
   step, unless some would have to catch up for it.
6. *Backlogs* (`plan.catch_up`). A request whose draft KV cache misses positions catches up before its draft. If that
   would take too long in this step, its K is 0 for now. The drafter leaves out requests with K = 0 and one position in
   the step.

A request's ceiling is the K that it asks for, but at most K_max, and at most the draft length that its remaining tokens
allow (`draftable_tokens`).

*One K for all* (`one_k`). With recurrent layers, and with some attention backends, a step is fast only if all decodes
have the same number of tokens. The law then chooses one K for all (`law.choice`), and a request near its end verifies
as many tokens as the others; those beyond its end are dropped, as in vLLM. Steps of other lengths are exact too, and
only slower. They remain where a request states a ceiling, classes have other bounds, a grammar cuts a draft, or
requests are postponed.

A *slot* is one position that the drafter prepares for one request, so a step has width x (requests not left out) slots.
P-EAGLE computes them in one pass. A sequential EAGLE head runs one pass for each position of the width: the same number
of slots.

When traffic changes, the parts react in this order (`law.law` has the memories of the inputs):

    same step       the room of the step (2); if the batch has changed much, K of all groups
    next step       K of a request whose band has moved; it takes a few drafts to move a band, and a plan knows the
                    drafts planned two steps earlier or more, with asynchronous scheduling three
    within 1 s      acceptance by band, prices, K of all groups
    seconds         at K = 0: probes that find predictable requests
    half an hour    the controller's fall back to the static K, if adaptive K loses (the earliest time for one engine by
                    default, less for several; `controller.decision.control_group`)

- A request with K > 0 becomes more or less predictable: its verified drafts move its band, and from the next step on it
  has the K that was chosen for that band. From high to low acceptance this takes more drafts than back
  (`evidence.request_acceptance`).
- The batch changes. Under a law (3a) K of all groups is chosen anew in the same step if the batch is no longer like the
  one of the last choice (`batch_choice.is_like`: about an eighth of the decodes), otherwise about once a second. If
  most decodes are new, K is chosen for them alone (`law.batch_choice`).
- A request with K = 0 becomes predictable: a probe is due `PROBE_AFTER` steps after its last draft, and runs when the
  budget allows. After a probe that is accepted whole, another one follows as soon as the outcome is known. These drafts
  move the band until step 3 gives the request a K above 0.
- A new request starts in the band of similar requests (`evidence.request_acceptance.Starts`), and its first draft is
  due at once. The outcome moves this band, and so all similar requests without a verified draft.
- K rises after steps at K = 0: backlogs catch up over several steps, smallest first (6).
- A queue builds up: K changes only with the number of running decodes, with the room that they leave (2), and with the
  share of steps that prefill.
"""

from collections.abc import Sequence

from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.law.probe_prices import SEQUENTIAL_PROBE, ProbePrices
from specpilot.engine_adapter.plan.catch_up import CatchUp
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.probes import PARALLEL_PROBE, Probes, probe_depth, steps_until_next
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.plan.step_room import StepRoom

CATCH_UP_ROWS = 1024
"""Backlog rows that catch up in one step when K rises. They take as long as a short prompt, some 27 ms with the demo
pair. With a larger number requests get drafts sooner; with a smaller one the durations of steps vary less."""


class Planner:
    """Plans the drafts of one engine, of at most `k_max` tokens each.

    `backlog_rows` bounds the backlogs of all requests together, `catch_up_rows` is as in `CatchUp`.
    `least_width` is above 0 for a drafter that must run in every step, unless it reads each step at width 0 too;
    `narrowest` and `in_lockstep` are as in `CatchUp`.
    `room` is the size of vLLM's step. `prices` are the costs of probes, `None` while unknown; another thread replaces
    them. `one_k`: all decodes of a step should have one K.

    `next_width` is the width of the next drafts by the law or the table, before 4 and 5.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the facts of an engine
        self,
        k_max: int,
        backlog_rows: int,
        catch_up_rows: int = CATCH_UP_ROWS,
        least_width: int = 0,
        narrowest: int = 1,
        room: StepRoom = StepRoom(),  # noqa: B008 - frozen
        prices: ProbePrices | None = None,
        *,
        one_k: bool = False,
        in_lockstep: bool = False,
    ) -> None:
        self.k_max = k_max
        self.one_k = one_k
        self.next_width = 0
        self.prices = prices
        self.catch_up = CatchUp(backlog_rows, catch_up_rows, least_width, narrowest, in_lockstep=in_lockstep)
        self.probes = Probes(k_max, catch_up_rows)
        self._room = room
        self._lone_probe = min(k_max, PARALLEL_PROBE if room.is_parallel else SEQUENTIAL_PROBE)
        self._step = 0

    def plan(
        self,
        states: Sequence[DraftState],
        table: KTable,
        *,
        can_draft: bool = True,
        prefilling: Sequence[DraftState] = (),
        waiting: int = 0,
    ) -> StepPlan:
        """Set `k` of each of `states`, the requests that decode in the next step, and return the step's plan.

        `can_draft`: vLLM drafts after this step at all. `prefilling`: requests of this step that go on prefilling in
        the next. `waiting`: the number of further requests that decode and have no token in this step.
        """
        # 1. Budget
        self._step += 1
        self.probes.start_step(self.prices, table.probe_ratio)
        # 2. Room
        batch = (*states, *prefilling)
        k_room = self._room.largest_k(len(batch) + waiting)
        # 3. Scheduled K
        self.next_width = width = _set_k(states, table, k_room, can_draft=can_draft)
        if self.k_max == 0:
            return StepPlan(0)
        if can_draft:
            # 4. Width
            k_room = min(k_room, self._widest(batch))
            if width > k_room:
                width = k_room
                for state in states:
                    state.k = min(state.k, k_room)
            width = max(width, self.catch_up.least_width)
            # 5. Probes
            if table.probe_depths and table.probe_ratio > 0.0 and k_room:
                width = self._probe(states, table, k_room, width)
        # 6. Backlogs
        if width == 0:
            return self.catch_up.drafting_nothing(batch, self._step)
        plan, postponed = self.catch_up.drafting(batch, self._step)
        self.probes.drafted_at = self.catch_up.drafted_at
        for request_id in postponed:
            self.probes.refund(request_id)
        return plan

    def _probe(self, states: Sequence[DraftState], table: KTable, k_room: int, width: int) -> int:
        """Set `k` of the requests that are probed (5); return the step's width."""
        is_drafting = self.next_width > 0
        depth = min(k_room, width or self._lone_probe)  # a drafter that runs anyway is not made wider
        width = self.probes.choose(states, table, self._step, width, depth, is_drafting=is_drafting)
        if self.one_k and self.catch_up.reads_all and not is_drafting and any(state.k for state in states):
            for state in states:
                state.k = min(width, probe_depth(state, table))
        return width

    def further_passes(self, width: int) -> int:
        """Return the passes that the drafter makes, after those of every step, to draft `width` tokens.

        What every step has would have no price of its own beside the price of a step.
        """
        return max(0, width - max(1, self.catch_up.least_width)) if self._room.is_sequential else 0

    @property
    def has_planned_with_present_prices(self) -> bool:
        """Whether the last plan was made with the prices of probes that are in force now."""
        return self.prices is self.probes.prices

    def identical_steps_ahead(self, states: Sequence[DraftState], table: KTable) -> int:
        """Return the number of further steps with the same plan, if scheduled K stays 0 for all `states`.

        No request is probed or catches up in these steps.
        """
        if not states or self.k_max == 0:
            return 0
        ahead = self.catch_up.identical_steps_ahead(states, self._step)
        if table.probe_ratio > 0.0:
            probed = [state for state in states if probe_depth(state, table)]
            if probed:
                ahead = min(ahead, steps_until_next(probed, self._step))
        return max(0, ahead)

    def skip_steps(self, states: Sequence[DraftState], table: KTable, count: int) -> None:
        """Account for `count` steps that repeated the last plan, at most `identical_steps_ahead`."""
        self.catch_up.skip_steps(states, count)
        self._step += count
        self.probes.earn(table.probe_ratio, count)

    def idle(self, probe_ratio: float, steps: float) -> None:
        """Add idle time, in steps of mean duration, to the budget for probes, like busy time."""
        self.probes.earn(probe_ratio, steps)

    def _widest(self, batch: Sequence[DraftState]) -> int:
        """Return the largest width of the drafter after the step under way."""
        if not self._room.is_parallel or self._room.block:
            return self.k_max
        return self._room.widest(len(batch), sum([state.positions for state in batch]))


def _set_k(states: Sequence[DraftState], table: KTable, k_room: int, *, can_draft: bool) -> int:
    """Give each request its scheduled K (case 3); return the largest."""
    law = table.law if can_draft and states else None
    every = law.k_of(states) if law is not None else table.k_of_each([state.traffic_class for state in states])
    k_room = k_room if can_draft else 0
    width = drafted = backlog_rows = 0
    for state, chosen in zip(states, every, strict=True):
        acceptance = state.acceptance
        state.band, state.is_unprobed = acceptance.band, acceptance.drafts == 0
        k = chosen  # comparisons, because `min` takes a third of this loop's time
        if k > k_room:  # noqa: PLR1730
            k = k_room
        if k > state.ceiling:  # noqa: PLR1730
            k = state.ceiling
        state.k = state.chosen_k = k
        if k:
            drafted += 1
            if k > width:  # noqa: PLR1730
                width = k
            if law is not None and state.left_out_rows:
                # `left_out_rows` also counts steps in which the request still verified a draft, and which left no row.
                backlog_rows += min(state.left_out_rows, state.backlog)
                state.left_out_rows = 0
    if law is not None:
        _note_left_out(states, law, drafted, backlog_rows)
    return width


def _note_left_out(states: Sequence[DraftState], law: EngineLaw, drafted: int, backlog_rows: int) -> None:
    """Count the steps in which the law left requests out, and report a plan to the law (`EngineLaw.note_plan`).

    `backlog_rows`: the rows that catch up now because earlier choices of the law left these requests out.
    """
    if 0 < drafted < len(states):
        for state in states:
            if not state.k:
                state.left_out_rows += 1
    law.note_plan(len(states), drafted, backlog_rows)

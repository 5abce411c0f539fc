"""Follows the steps of one engine: passes each scheduled step to the planner and each outcome to the meter.

Pure: times are arguments, and of vLLM's objects only attributes are read (`plan.request_facts`).

For each step vLLM's scheduler calls

1. `begin`, once it has scheduled the step: each request's state is set from the step, and the next drafts are planned;
2. `note_draft`, for each verified draft: updates the request's band, and the acceptance with which similar requests
   start;
3. `end`, with the outputs of the step: counts the step.

In the asynchronous loop `begin` of the next step comes before `note_draft` and `end` of this one, so the steps under
way form a queue.

`begin` does three things: it reads the step (`_read`), has it planned, and notes it (`_note`). With K = 0 for all
requests most steps repeat the previous one (`plan.repetition`). `begin` then does none of them, and `_settle` adds the
positions of these steps to the backlogs when something changes. A step with drafts is always planned, because their
outcome may change K.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.engine_adapter.evidence.meter import Cohort, Draft, Meter, Outcome
from specpilot.engine_adapter.evidence.request_acceptance import FIRST_DRAFTS, Acceptance, Kind, Starts, kind_of, trials
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.probes import may_probe
from specpilot.engine_adapter.plan.repetition import Repetition
from specpilot.engine_adapter.plan.request_facts import (
    draftable_tokens,
    min_tokens,
    reads_text_prompt,
    stated,
    waiting_decodes,
)
from specpilot.engine_adapter.plan.scheduled_step import ScheduledDraft, ScheduledStep, UnderWay
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.step_clock import StepClock
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.policy.names import DEFAULT_CLASS


class Steps:
    """Follows an engine's requests from step to step.

    `table` is the one in force. vLLM drafts nothing while a request has more than `longest_to_draft` positions.
    `states` are the requests by id, `decoding` those that decode after the latest step.
    """

    def __init__(self, planner: Planner, meter: Meter, table: KTable, longest_to_draft: int) -> None:
        self.table = table
        self.states: dict[str, DraftState] = {}
        self.decoding: list[DraftState] = []
        self.starts = Starts()
        self._planner = planner
        self._meter = meter
        self._clock = StepClock()
        self._longest_to_draft = longest_to_draft
        self._context = 0  # positions of the requests of the latest step, together
        self._under_way: deque[UnderWay] = deque()
        self._drafts: dict[str, Draft] = {}  # verified in the first step under way, by request
        self._cut = 0  # drafted tokens of that step that were not verified
        self._learned_of: set[Kind] = set()  # kinds whose starting estimate has changed since the last planned step
        self._repetition = Repetition()
        self._outcome = Outcome()  # of the latest step
        self._plain: dict[str, Cohort] | None = None  # of the latest step, if it delivered one token to each request

    # 1. A step begins

    def begin(
        self, output: Any, requests: Mapping[str, Any], table: KTable, now: float, running: Sequence[Any] = ()
    ) -> StepPlan:
        """Process a step that vLLM has scheduled, and plan the drafts after it.

        `output` is vLLM's `SchedulerOutput`, `requests` its requests by id. `running` are the running requests, also
        those without a token in the step.
        """
        if not output.num_scheduled_tokens:
            return self._begin_empty(output, requests, table)
        if self._may_repeat(output, table):
            return self._repeat(output, now)
        self._stop_repeating()
        if steps := self._clock.end_idle_time(now):
            self._planner.idle(table.probe_ratio, steps)
        self._drop_finished(output, requests)
        self._use(table)
        self._restart_unverified()
        step = self._read(output, requests)
        plan = self._planner.plan(
            step.decoding,
            table,
            can_draft=step.longest <= self._longest_to_draft,
            prefilling=step.prefilling,
            waiting=waiting_decodes(running, output.num_scheduled_tokens, self.states),
        )
        self._note(output, now, step, plan)
        return plan

    def _read(self, output: Any, requests: Mapping[str, Any]) -> ScheduledStep:
        """Return what a scheduled step contains, and set the state of each of its requests as it is after the step."""
        step = ScheduledStep(output.num_scheduled_tokens)
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = requests[request_id]
            state = self._state_of(request_id, request)
            context = state.context = request.num_computed_tokens
            step.context += context
            step.longest = max(step.longest, context)
            drafted = len(output.scheduled_spec_decode_tokens.get(request_id) or ())
            # The request in this step
            if state.decoding:
                step.verified += scheduled
                step.lengths.add(scheduled)
                if drafted:
                    step.draft_context += drafted * context
                    step.drafts[request_id] = ScheduledDraft(state.chosen_k, state.band, state.is_unprobed)
                else:
                    step.plain[request_id] = self._cohort(state)
                if state.grammar_allows == drafted:
                    step.refused[request_id] = state.is_unprobed
                    if not drafted:
                        self._learn(state, Draft(state.label, state.band, 0, 0, is_refused=True))
            else:
                step.prefill += scheduled
            # Its state after the step
            state.grammar_allows, state.positions = None, scheduled
            state.is_text_prompt = reads_text_prompt(state, request, drafted)
            state.decoding = not request.is_prefill_chunk
            draftable = draftable_tokens(state, request, drafted, may_exceed=self._planner.one_k)
            state.ceiling = max(0, min(state.stated_ceiling, self._planner.k_max, draftable))
            (step.decoding if state.decoding else step.prefilling).append(state)
        return step

    def _note(self, output: Any, now: float, step: ScheduledStep, plan: StepPlan) -> None:
        """Add a planned step to those under way, and determine how many steps may repeat it."""
        step.follow(plan, self._planner.further_passes(plan.width))
        self._context = step.context
        self._under_way.append(UnderWay(output, now, step.context, step))
        self.decoding = step.decoding
        if self._drafts_nothing(step, plan):
            ahead = self._planner.identical_steps_ahead(step.decoding, self.table)
            self._repetition.start(step, plan, ahead)

    def _begin_empty(self, output: Any, requests: Mapping[str, Any], table: KTable) -> StepPlan:
        """Process a step without tokens, without planning it: it earns the probes nothing.

        While all requests wait for a grammar, vLLM's loop takes such a step each millisecond.
        """
        if not self._under_way:
            self._clock.interrupt()
        self._stop_repeating()
        self._drop_finished(output, requests)
        self._use(table)
        return StepPlan(self._planner.catch_up.least_width)

    def _repeat(self, output: Any, now: float) -> StepPlan:
        """Process a step that repeats the last planned one."""
        self._repetition.repeat()
        self._context += len(self.decoding)
        self._under_way.append(UnderWay(output, now, self._context, self._repetition.step))
        return self._repetition.plan

    # 2. Its drafts are verified

    def note_draft(
        self, request_id: str, drafted: int, accepted: int, invalid: int, verified: int | None = None
    ) -> None:
        """Process one draft of `drafted` tokens; the grammar cut `invalid` of them off at the end.

        `verified` is the number of verified tokens, if vLLM's adaptive verification chose a prefix of the draft;
        `None`: all. A draft without a verified token counts as K = 0. It is evidence about acceptance only if the
        grammar rejected its first token.

        Only the drafts of requests that decode count. A request that joins running decodes with one token left to
        prefill may have placeholders, so that all requests have the same number of positions. They are not from the
        drafter.
        """
        if not self._under_way or not drafted:
            return
        self._repetition.stop()
        step = self._under_way[0].step
        planned = step.drafts.get(request_id)
        state = self.states.get(request_id)
        if planned is not None and state is not None:
            allowed, prefix = drafted - invalid, drafted if verified is None else min(verified, drafted)
            k = min(allowed, prefix)
            self._cut += drafted - prefix
            is_refused = (invalid > 0 or request_id in step.refused) and k == allowed
            is_probe = k > planned.chosen_k
            draft = Draft(state.label, planned.band, k, accepted, is_probe, is_refused, planned.is_unprobed)
            self._drafts[request_id] = draft
            if k or is_refused:
                self._learn(state, draft)

    def _learn(self, state: DraftState, draft: Draft) -> None:
        """Update the request's estimate with the outcome of a draft.

        One of the first `FIRST_DRAFTS` drafts also updates the estimate with which similar requests start.
        """
        k, accepted, is_refused = draft.k, draft.accepted, draft.is_refused
        if state.acceptance.drafts < FIRST_DRAFTS:
            self.starts.note(state.kind, accepted, trials(k, accepted, is_refused=is_refused))
            self._learned_of.add(state.kind)
        state.note(k, accepted, is_probe=draft.is_probe, is_refused=is_refused)

    def _restart_unverified(self) -> None:
        """Set requests without a verified draft to the current starting estimate of their kind.

        So after a change of traffic, the probes of one request move all similar requests without a verified draft.
        """
        if self._learned_of:
            for state in self.states.values():
                if state.acceptance.drafts == 0 and state.kind in self._learned_of:
                    state.acceptance = Acceptance(self.starts.of(state.kind))
            self._learned_of.clear()

    # 3. It ends

    def skip_to(self, output: Any) -> None:
        """Drop the steps before that of `output`: vLLM dropped their outcome."""
        while self._under_way and self._under_way[0].output is not output and output.num_scheduled_tokens:
            self._under_way.popleft()

    def end(
        self, output: Any, outputs: Mapping[int, Any], now: float, *, goes_on: bool, device_s: float | None = None
    ) -> None:
        """Count a step. `outputs` has none for requests that ended before.

        `goes_on`: there are unfinished requests, so the next step lasts from now. `device_s`: seconds on the device
            from the end of the previous step to the end of this one; `None` without a device that reports them.
        """
        if not self._under_way or self._under_way[0].output is not output:
            return
        _, scheduled_at, context, step = self._under_way.popleft()
        # In vLLM's asynchronous loop another step may be under way although no request is unfinished; it lasts from
        # now.
        seconds = self._clock.end_step(scheduled_at, now, device_s, goes_on=goes_on or bool(self._under_way))
        items = [item for client in outputs.values() for item in client.outputs if item.new_token_ids]
        is_plain = len(items) == len(step.plain) and not step.drafts
        if not is_plain or step.plain is not self._plain:  # otherwise the outcome is that of the previous step
            self._plain = step.plain if is_plain else None
            self._outcome = step.outcome(self._drafts, items)
            self._drafts.clear()
        shape, self._cut = step.shape.cut(self._cut), 0
        self._meter.commit(shape, seconds, context, self._outcome)

    def waiting_s(self, now: float) -> float:
        """Return the seconds for which the oldest step under way has run, 0 without one; other threads may call."""
        try:
            scheduled_at = self._under_way[0].scheduled_at
        except IndexError:
            return 0.0
        return self._clock.waiting_s(scheduled_at, now)

    def pause(self) -> None:
        """Record that the engine pauses or goes on: this time belongs to no step."""
        self._clock.interrupt()

    # Requests

    def restart(self, request_id: str) -> None:
        """Record that a request was preempted: it is prefilled anew."""
        self._stop_repeating()
        state = self.states.get(request_id)
        if state is not None:
            state.restart()

    def backlog(self, request_id: str) -> int:
        """Return the number of a request's latest positions that the drafter has not read."""
        self._settle()
        state = self.states.get(request_id)
        return state.backlog if state is not None else 0

    @property
    def backlog_tokens(self) -> int:
        """Number of positions of all decodes that the drafter has not read; other threads may read it."""
        unsettled = self._repetition.unsettled if self._planner.catch_up.keeps_rows else 0
        return sum(state.backlog + unsettled for state in self.decoding)

    def _may_repeat(self, output: Any, table: KTable) -> bool:
        """Whether a step repeats the last planned one, by the same table and prices."""
        return (
            table is self.table
            and self._planner.has_planned_with_present_prices
            and self._repetition.is_repeated_by(output)
        )

    def _drafts_nothing(self, step: ScheduledStep, plan: StepPlan) -> bool:
        """Whether a next step with the same requests and one token each repeats the `step`.

        That is so if nothing was prefilled, verified or drafted, no request catches up or has changed its band, and the
        scheduled K is 0. While a request is shorter than its `min_tokens` no step repeats, because its K may be 0 for
        this reason alone.
        """
        if plan.width or step.prefill or step.drafts or step.refused or plan.catch_up:
            return False
        return all(
            state.chosen_k == 0 and not state.min_tokens and step.plain.get(state.request_id) == self._cohort(state)
            for state in step.decoding
        )

    def _stop_repeating(self) -> None:
        self._settle()
        self._repetition.stop()

    def _settle(self) -> None:
        """Add the positions that repeated steps left to the requests' backlogs."""
        if count := self._repetition.settle():  # settled first, so that `backlog_tokens` counts nothing twice
            self._planner.skip_steps(self.decoding, self.table, count)

    def _drop_finished(self, output: Any, requests: Mapping[str, Any]) -> None:
        """Drop finished requests. For a session that got more input, read the limits again."""
        for request_id in output.finished_req_ids:
            self.states.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            state = self.states.get(new.req_id)
            if state is not None:
                request = requests[new.req_id]
                state.restart()
                state.stated_ceiling = stated(request).ceiling
                state.min_tokens = min_tokens(request)

    def _state_of(self, request_id: str, request: Any) -> DraftState:
        state = self.states.get(request_id)
        if state is None:
            traffic_class, temperature, ceiling = stated(request)
            kind = kind_of(traffic_class, temperature, is_structured=request.use_structured_output)
            start = self.starts.of(kind)
            state = self.states[request_id] = DraftState(request_id, kind, start, ceiling, min_tokens(request))
            state.label = self._label(state)
        return state

    def _use(self, table: KTable) -> None:
        """Make `table` the one in force; a new one may name other classes."""
        if table is not self.table:
            self.table = table
            for state in self.states.values():
                state.label = self._label(state)

    def _cohort(self, state: DraftState) -> Cohort:
        """Return the cohort of a decode without a draft. A request that is never probed does not count as unprobed."""
        is_unprobed = state.acceptance.drafts == 0 and may_probe(state, self.table)
        return Cohort(state.label, state.band, is_unprobed)

    def _label(self, state: DraftState) -> str:
        """Return the class under which a request's evidence is counted: its own if the table names it."""
        return state.traffic_class if state.traffic_class in self.table.k_of else DEFAULT_CLASS

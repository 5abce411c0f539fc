"""The steps of one engine, from what vLLM schedules to what they deliver: K of the next drafts, evidence of the last.

Pure: the time is an argument, and of vLLM's objects only attributes are read.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.apply import KTable
from engine_adapter.measure import Draft, Meter, Outcome, StepShape
from engine_adapter.plan import DraftState, Planner, StepPlan
from policy.types import DEFAULT_CLASS, is_class_name

CLASS_ARGUMENT = "traffic_class"
"""The entry of a request's `extra_args` that names its class."""


@dataclass(slots=True)
class _Step:
    """A step between its scheduling and its end."""

    output: Any
    shape: StepShape
    scheduled_at: float
    plain: dict[str, str]  # class of each decode without a draft to verify, by request
    due: dict[str, int]  # the schedule's K of each draft to verify, by request
    refused: set[str]  # requests whose draft the grammar cut short
    drafts: dict[str, Draft] = field(default_factory=dict)


class Steps:
    """Follows an engine's requests from step to step; counts with `meter` what the steps came to.

    `table` is the one in force. vLLM drafts for nobody while a request has more than `longest_to_draft` positions.
    `states` are the requests by id, `decoding` those that decode after the latest step.

    A step's duration is the time from the previous step's end to its own, because under load that is the time a
    running request waits; after idleness it is the time since the step was scheduled. Times are monotonic, in seconds.
    """

    def __init__(self, planner: Planner, meter: Meter, table: KTable, longest_to_draft: int) -> None:
        self.table = table
        self.states: dict[str, DraftState] = {}
        self.decoding: list[DraftState] = []
        self._planner = planner
        self._meter = meter
        self._longest_to_draft = longest_to_draft
        self._steps: deque[_Step] = deque()
        self._ended_at: float | None = None

    def begin(self, output: Any, requests: Mapping[str, Any], table: KTable, now: float) -> StepPlan:
        """Take a step in that vLLM has scheduled, and plan the drafts after it.

        `output` is vLLM's `SchedulerOutput`, `requests` are its requests by id.
        """
        for request_id in output.finished_req_ids:
            self.states.pop(request_id, None)
        self._use(table)
        spec_tokens = output.scheduled_spec_decode_tokens
        plain: dict[str, str] = {}
        due: dict[str, int] = {}
        refused: set[str] = set()
        decodes = verified = longest = 0
        has_prefill = False
        decoding: list[DraftState] = []
        prefilling: list[DraftState] = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = requests[request_id]
            longest = max(longest, request.num_computed_tokens)
            state = self.states.get(request_id)
            if state is None:
                state = self.states[request_id] = DraftState(request_id, _class_of(request))
                state.label = self._label(state)
            if state.decoding:
                decodes += 1
                verified += scheduled
                drafted = len(spec_tokens.get(request_id) or ())
                if drafted:
                    due[request_id] = state.due
                else:
                    plain[request_id] = state.label
                if state.allowed == drafted:
                    refused.add(request_id)
            else:
                has_prefill = True
            state.allowed = None
            state.positions = scheduled
            if request.is_prefill_chunk:
                prefilling.append(state)
            else:
                state.decoding = True
                decoding.append(state)
        plan = self._planner.plan(decoding, table, can_draft=longest <= self._longest_to_draft, prefilling=prefilling)
        if output.num_scheduled_tokens:
            self.decoding = decoding
            shape = StepShape(decodes, verified, plan.width, has_prefill, plan.read)
            self._steps.append(_Step(output, shape, now, plain, due, refused))
        return plan

    def verified(self, request_id: str, drafted: int, accepted: int, invalid: int) -> None:
        """Note the outcome of one verified draft: of `drafted` tokens the grammar cut `invalid` off at the end.

        Only of a request that decodes: to one that joins running decodes with one token left to prefill, vLLM gives
        K_max placeholders, so that all have as many positions, and nobody drafted those.
        """
        if not self._steps or not drafted:
            return
        step = self._steps[0]
        due = step.due.get(request_id)
        state = self.states.get(request_id)
        if due is not None and state is not None:
            k = drafted - invalid
            is_refused = invalid > 0 or request_id in step.refused
            step.drafts[request_id] = Draft(state.label, k, accepted, is_probe=k > due, is_refused=is_refused)

    def skip_to(self, output: Any) -> None:
        """Forget the steps before that of `output`: vLLM dropped their outcome."""
        while self._steps and self._steps[0].output is not output and output.num_scheduled_tokens:
            self._steps.popleft()

    def end(self, output: Any, outputs: Mapping[int, Any], now: float, *, goes_on: bool) -> None:
        """Count a step; `outputs` says what it delivered, which is nothing to requests that ended meanwhile.

        `goes_on` says that there are unfinished requests, so that the next step's time begins here.
        """
        if not self._steps or self._steps[0].output is not output:
            return
        step = self._steps.popleft()
        since = step.scheduled_at if self._ended_at is None else self._ended_at
        outcome = Outcome()
        for client in outputs.values():
            for item in client.outputs:
                request_id, delivered = item.request_id, len(item.new_token_ids)
                draft = step.drafts.get(request_id)
                label = step.plain.get(request_id) if draft is None else draft.traffic_class
                if label is None or not delivered:
                    continue
                outcome.tokens[label] += delivered
                if draft is not None:
                    outcome.drafts.append(draft)
                    continue
                outcome.plain[label] += 1
                if request_id in step.refused:
                    outcome.refused.append(label)
        self._meter.commit(step.shape, now - since, outcome)
        self._ended_at = now if goes_on else None

    def pause(self) -> None:
        """Note that the engine pauses or goes on: the time in between is no step's."""
        self._ended_at = None

    def restart(self, request_id: str) -> None:
        """Note that a request was preempted: it will be prefilled anew."""
        state = self.states.get(request_id)
        if state is not None:
            state.restart()

    def _use(self, table: KTable) -> None:
        """Make `table` the one in force; a new one may name other classes."""
        if table is not self.table:
            self.table = table
            for state in self.states.values():
                state.label = self._label(state)

    def _label(self, state: DraftState) -> str:
        """The class that the request's evidence counts for: its own if the schedule knows it."""
        return state.traffic_class if state.traffic_class in self.table.rows else DEFAULT_CLASS


def _class_of(request: Any) -> str:
    """The class that the gateway put on the request; `default` when there is none, or nonsense."""
    parameters = request.sampling_params
    extra = parameters.extra_args if parameters is not None else None
    name = (extra or {}).get(CLASS_ARGUMENT)
    return name if isinstance(name, str) and is_class_name(name) else DEFAULT_CLASS

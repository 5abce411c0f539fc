"""The adapter's place in vLLM's scheduler: K per request, draft width per step, evidence of each step.

One mixin over vLLM's two schedulers, and no copy of their code. It acts at these of their methods:

- `_update_after_schedule` ends `schedule()`: here the requests that decode next are known, so here K is planned.
  The width goes to the drafter as `num_spec_tokens_to_schedule`, and beside it who catches up; the asynchronous
  scheduler has just given every request K_max placeholders, which are cut to its K.
- `update_draft_token_ids` brings the drafts to the synchronous scheduler: each is cut to its K.
- `make_spec_decoding_stats` is told of every verified draft: the outcome is noted.
- `update_from_output` ends a step: what it delivered is known, so it is timed, and counted whole.
- `_preempt_request` and `_free_request_blocks` end a stay in the KV cache: a backlog must not outlive it.
- `set_pause_state` stops and resumes the engine (`/pause`, sleeping): the time in between is no step's.

A step's duration is the time from the previous step's end to its own, because under load that is the time a
running request waits; after idleness it is the time since the step was scheduled.
"""

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine_adapter import compat
from engine_adapter.agent import start_agent
from engine_adapter.apply import KTable, SpeculationControl
from engine_adapter.measure import Draft, Meter, Outcome, StepShape
from engine_adapter.plan import CATCH_UP, ROWS_PER_STEP, DraftState, Planner
from engine_adapter.settings import AdapterSettings
from policy.clock import SystemClock
from policy.types import DEFAULT_CLASS, is_class_name

CLASS_ARGUMENT = "traffic_class"


@dataclass(slots=True)
class _Step:
    """A step between its scheduling and its end."""

    output: Any
    shape: StepShape
    scheduled_at: float
    plain: dict[str, str]  # class of each decode without a draft to verify, by request
    due: dict[str, int]  # the schedule's K of each draft to verify, by request
    refused: frozenset[str]  # requests whose draft the grammar cut short
    drafts: dict[str, Draft] = field(default_factory=dict)


class _SpecPilotScheduler:
    """Mixin over `Scheduler` and `AsyncScheduler`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vllm_config = self.vllm_config  # type: ignore[attr-defined]
        settings = AdapterSettings.read()
        compat.check_installed(any_version=settings.any_vllm)
        compat.check_config(vllm_config, is_async_scheduler=isinstance(self, AsyncScheduler))
        k_max = vllm_config.num_speculative_tokens
        self.control = SpeculationControl(
            model=_served_name(vllm_config),
            pool=settings.pool,
            k_max=k_max,
            static_k=k_max if settings.static_k is None else settings.static_k,
            max_running=vllm_config.scheduler_config.max_num_seqs,
        )
        self.meter = Meter()
        self._decoding: list[DraftState] = []
        rows = compat.backlog_rows(vllm_config)
        self._planner = Planner(
            k_max,
            rows,
            min(ROWS_PER_STEP, vllm_config.scheduler_config.max_num_batched_tokens),
            least_width=(0 if rows else min(1, k_max)) if settings.draft_width else k_max,
        )
        self._drafter_length = compat.drafter_length(vllm_config)
        self._width = k_max
        self._states: dict[str, DraftState] = {}
        self._steps: deque[_Step] = deque()
        self._ended_at: float | None = None
        self._table: KTable = self.control.table(time.monotonic())
        self._agent = start_agent(self, settings, SystemClock())

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        now = time.monotonic()
        spec_tokens = scheduler_output.scheduled_spec_decode_tokens
        for request_id in scheduler_output.finished_req_ids:
            self._states.pop(request_id, None)
        self._use_table(self.control.table(now))
        plain: dict[str, str] = {}
        due: dict[str, int] = {}
        refused: list[str] = []
        decodes = verified = longest = 0
        has_prefill = False
        next_requests: list[Any] = []
        next_states: list[DraftState] = []
        unfinished: list[DraftState] = []
        for request_id, scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]  # type: ignore[attr-defined]
            longest = max(longest, request.num_computed_tokens)
            state = self._states.get(request_id)
            if state is None:
                state = self._states[request_id] = DraftState(request_id, _class_of(request))
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
                    refused.append(request_id)
            else:
                has_prefill = True
            state.allowed = None
            state.positions = scheduled
            if request.is_prefill_chunk:
                unfinished.append(state)
            else:
                state.decoding = True
                next_requests.append(request)
                next_states.append(state)
        plan = self._planner.plan(
            next_states,
            self._table,
            can_draft=longest + self.control.k_max <= self._drafter_length,
            prefilling=unfinished,
        )
        scheduler_output.num_spec_tokens_to_schedule = self._width = plan.width
        setattr(scheduler_output, CATCH_UP, plan.catch_up)
        self._place(next_requests, next_states)
        if scheduler_output.num_scheduled_tokens:
            self._decoding = next_states
            shape = StepShape(decodes, verified, plan.width, has_prefill, plan.read)
            self._steps.append(_Step(scheduler_output, shape, now, plain, due, frozenset(refused)))

    @property
    def running_decodes(self) -> Counter[str]:
        """Requests that decode after the latest step, by class; for the exporting thread, once a second."""
        return Counter(state.label for state in self._decoding)

    @property
    def backlog_tokens(self) -> int:
        """Positions of these requests that the drafter has not seen."""
        return sum(state.backlog for state in self._decoding)

    def _place(self, requests: list[Any], states: list[DraftState]) -> None:
        """Prepare the requests' drafts of the next step; the synchronous scheduler has none yet."""

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        """Note the outcome of one verified draft, then let vLLM count it too.

        Only of a request that decodes: to one that joins running decodes with one token left to prefill, vLLM gives
        K_max placeholders, so that all have as many positions, and nobody drafted those.
        """
        if self._steps and num_draft_tokens:
            step = self._steps[0]
            due = step.due.get(request_id)
            state = self._states.get(request_id)
            if due is not None and state is not None:
                invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
                k = num_draft_tokens - invalid
                step.drafts[request_id] = Draft(
                    state.label,
                    k=k,
                    accepted=num_accepted_tokens,
                    is_probe=k > due,
                    is_refused=invalid > 0 or request_id in step.refused,
                )
        return super().make_spec_decoding_stats(  # type: ignore[misc]
            spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Let vLLM take the step's outcome in, then count the step."""
        while self._steps and self._steps[0].output is not scheduler_output and scheduler_output.num_scheduled_tokens:
            self._steps.popleft()  # a step whose outcome vLLM dropped
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if self._steps and self._steps[0].output is scheduler_output:
            self._count(self._steps.popleft(), outputs)
        return outputs

    def _count(self, step: _Step, outputs: Mapping[int, Any]) -> None:
        """Count a step; `outputs` says what it delivered, which is nothing to requests that ended meanwhile."""
        now = time.monotonic()
        since = step.scheduled_at if self._ended_at is None else self._ended_at
        outcome = Outcome()
        for client in outputs.values():
            for output in client.outputs:
                request_id, delivered = output.request_id, len(output.new_token_ids)
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
        self.meter.commit(step.shape, now - since, outcome)
        self._ended_at = now if self.has_unfinished_requests() else None  # type: ignore[attr-defined]

    def set_pause_state(self, pause_state: Any) -> None:
        """Let vLLM pause or resume; the next step's time begins when it is scheduled."""
        super().set_pause_state(pause_state)  # type: ignore[misc]
        self._ended_at = None

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        state = self._states.get(request.request_id)
        if state is not None:
            state.restart()

    def _free_request_blocks(self, request: Any) -> None:
        """Free the blocks, after taking those with a backlog off the prefix cache: who needs them prefills them."""
        state = self._states.get(request.request_id)
        if state is not None and state.backlog:
            seen = min(max(0, request.num_computed_tokens - state.backlog), self._drafter_length)
            cache = self.kv_cache_manager  # type: ignore[attr-defined]
            groups = zip(cache.get_block_ids(request.request_id), cache.coordinator.single_type_managers, strict=True)
            cache.evict_blocks({block for blocks, kind in groups for block in blocks[seen // kind.block_size :]})
        super()._free_request_blocks(request)  # type: ignore[misc]

    def _use_table(self, table: KTable) -> None:
        """Make `table` the one in force; a new one may name other classes."""
        if table is not self._table:
            self._table = table
            for state in self._states.values():
                state.label = self._label(state)

    def _label(self, state: DraftState) -> str:
        """The class that the request's evidence counts for: its own if the schedule knows it."""
        return state.traffic_class if state.traffic_class in self._table.rows else DEFAULT_CLASS

    def shutdown(self) -> None:
        """Take the engine off the list, then shut vLLM's scheduler down."""
        self._agent.stop()
        super().shutdown()  # type: ignore[misc]


class SpecPilotScheduler(_SpecPilotScheduler, Scheduler):
    """vLLM's synchronous scheduler with K per request."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Cut each request's draft to its K, then hand the drafts to vLLM; there are none after a step of width 0."""
        if self._width == 0:
            return
        for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False):
            state = self._states.get(request_id)
            if state is not None:
                del tokens[state.k :]
        super().update_draft_token_ids(draft_token_ids)
        for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False):
            request = self.requests.get(request_id)
            if request is not None and request.use_structured_output and not request.is_prefill_chunk:
                state = self._states.get(request_id)
                if state is not None and len(request.spec_token_ids) < len(tokens):
                    state.allowed = len(request.spec_token_ids)


class SpecPilotAsyncScheduler(_SpecPilotScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler with K per request."""

    def _place(self, requests: list[Any], states: list[DraftState]) -> None:
        for request, state in zip(requests, states, strict=True):
            request.spec_token_ids = [-1] * state.k


def _served_name(vllm_config: Any) -> str:
    """The first name under which vLLM serves the model, as on its metrics."""
    name = vllm_config.model_config.served_model_name
    return str(name[0] if isinstance(name, list) else name)


def _class_of(request: Any) -> str:
    """The class that the gateway put on the request; `default` when there is none, or nonsense."""
    parameters = request.sampling_params
    extra = parameters.extra_args if parameters is not None else None
    name = (extra or {}).get(CLASS_ARGUMENT)
    return name if isinstance(name, str) and is_class_name(name) else DEFAULT_CLASS

"""The adapter's part of vLLM's scheduler: K per request, draft width per step, evidence of each step.

One mixin over vLLM's two schedulers, without a copy of their code. It passes each step to `engine_adapter.plan.steps`,
which plans and counts. The mixin wraps these methods of vLLM:

- `schedule`: a request that joins with one token left to prefill gets no more placeholders than the others have drafts.
  vLLM keeps room for slots of the next drafts' width, instead of K_max (`engine_facts.at_widths`).
- `_update_after_schedule` ends `schedule()`: the requests that decode next are known, so K is planned here. The width
  goes to the drafter as `num_spec_tokens_to_schedule`, beside the whole plan. The asynchronous scheduler has just given
  every request K_max placeholders, which are cut to its K.
- `update_draft_token_ids` passes the drafts to the synchronous scheduler: each is cut to its K.
- `make_spec_decoding_stats` receives every verified draft: its outcome is noted.
- `update_from_output` ends a step: it is timed and counted.
- `_preempt_request` and `_free_request_blocks` remove a request from the KV cache, which ends its backlog. The next
  input of a session ends it too.
- `_handle_stopped_request` ends a reply, `_free_request` a request: its latency is measured. A session may be closed
  long after its last reply.
- `set_pause_state` stops and resumes the engine (`/pause`, sleeping): the time in between belongs to no step.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.agent.agent import start_agent
from specpilot.engine_adapter.evidence.meter import Meter
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.latencies import Latencies
from specpilot.engine_adapter.plan.planner import CATCH_UP_ROWS, Planner
from specpilot.engine_adapter.plan.request_facts import min_tokens
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.engine_adapter.plan.step_plan import PLAN
from specpilot.engine_adapter.plan.steps import Steps
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import (
    compat,
    data_parallel,
    device_time,
    engine_facts,
    graph_record,
    start_notes,
    verified_tokens,
    versions,
)
from specpilot.policy.clock import SystemClock
from specpilot.policy.records import rank_id


class _SpecPilotScheduler:
    """Mixin over `Scheduler` and `AsyncScheduler`."""

    plans_drafts = True
    """A mark for the workers: the steps of this scheduler have a plan of their drafts."""

    num_spec_tokens: int
    """vLLM's own, K_max: placeholders of a request that joins with one token left to prefill."""

    vllm_config: Any
    """vLLM's own; `schedule` reads from it the width for which it keeps room."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vllm_config = self.vllm_config
        plugin_names.check_switched_on()
        settings = AdapterSettings.read()
        versions.check_installed(any_version=settings.any_vllm, is_v2=vllm_config.use_v2_model_runner)
        compat.check_config(vllm_config, is_async_scheduler=isinstance(self, AsyncScheduler))
        self.notes = start_notes.said_notes(vllm_config)
        self.rank = data_parallel.rank_of(vllm_config)
        k_max = vllm_config.num_speculative_tokens
        self.control = SpeculationControl(
            model=_served_name(vllm_config),
            pool=settings.pool,
            k_max=k_max,
            static_k=k_max if settings.static_k is None else settings.static_k,
            max_running=vllm_config.scheduler_config.max_num_seqs,
            adapts=settings.static_k is None,
            engine_id=settings.engine_id if self.rank is None else rank_id(settings.engine_id, self.rank),
            own_guidance=settings.own_guidance,
        )
        self.meter = Meter()
        self.latencies = Latencies()
        self.graphs = graph_record.of_config(self.kv_cache_config)  # type: ignore[attr-defined]
        rows = engine_facts.backlog_rows(vllm_config)
        planner = Planner(
            k_max,
            rows,
            min(CATCH_UP_ROWS, vllm_config.scheduler_config.max_num_batched_tokens),
            *engine_facts.least_widths(vllm_config),
            room=engine_facts.step_room(vllm_config),
            one_k=self.graphs is not None and self.graphs.need_one_k,
            in_lockstep=data_parallel.in_lockstep(vllm_config),
        )
        self._config_at = engine_facts.at_widths(vllm_config)
        # vLLM 0.33 drafts nothing after a step whose drafts it knows to be dropped. A parallel drafter reads such a
        # step's positions all the same, and would miss them. So the plan alone sets the width.
        self.can_skip_drafts = False
        start_notes.say_summary(vllm_config, self.graphs, static_k=settings.static_k, notes=len(self.notes))
        self.planner = planner
        self.law = EngineLaw(
            k_max,
            self.control.static_k,
            self.control.max_running,
            self.graphs,
            planner.catch_up.width_of_all,
            planner.catch_up.narrowest,
        )
        self._drafter_length = engine_facts.drafter_length(vllm_config)
        self._width = k_max
        self._verified: Mapping[str, int] = {}  # verified draft tokens of the step, if they may be fewer than scheduled
        self._bound: set[str] = set()  # requests with a minimum of tokens, also some that have ended
        self.steps = Steps(
            planner,
            self.meter,
            self.control.table(time.monotonic()),
            longest_to_draft=self._drafter_length - (engine_facts.block(vllm_config) or k_max),
        )
        self._agent = start_agent(self, settings, SystemClock(), versions.vllm_version())

    def add_request(self, request: Any) -> None:
        """Pass vLLM a request, or more input of a session."""
        super().add_request(request)  # type: ignore[misc]
        if self.graphs is not None and min_tokens(request) > 1:
            if len(self._bound) > len(self.requests):  # type: ignore[attr-defined]
                self._bound.intersection_update(self.requests)  # type: ignore[attr-defined]
            self._bound.add(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Let vLLM schedule a step.

        vLLM gives a request that joins with one token left to prefill K_max placeholders, so that all requests have the
        same number of positions and the step has a CUDA graph. Here it gets as many as the others verify drafts, and
        none if their drafts differ or no graph depends on it. (On a CPU such a placeholder could even be accepted:
        vLLM's replacement for the kernel that rejects it reads the probability of token -1.)

        With a parallel drafter vLLM keeps K_max - 1 slots of the drafter's buffers for each request at any K. Here it
        keeps slots for the present width. The drafts after the step are planned when its tokens are known, with a width
        that fits beside them (`plan.planner`). The slots of the KV cache are separate, and stay those of K_max.
        """
        k_max, self.num_spec_tokens = self.num_spec_tokens, self._joining_k()
        config, self.vllm_config = self.vllm_config, self._config_at[self.planner.next_width]
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.num_spec_tokens, self.vllm_config = k_max, config

    def _joining_k(self) -> int:
        """Return the common K of all decodes in the step to be scheduled; 0: they differ, or there are none.

        It is also 0 without CUDA graphs, with FULL graphs for any mix of K, and while a request below its `min_tokens`
        waits: asynchronously vLLM would count the placeholders as tokens (`request_facts.min_tokens`).
        """
        if self._width == 0 or self.graphs is None or self.graphs.fit_any_k:
            return 0
        depths = {state.k for state in self.steps.decoding}
        if len(depths) != 1:
            return 0
        requests, running = self.requests, self.running  # type: ignore[attr-defined]
        # Not over all waiting requests: there may be thousands, and this runs in each step.
        is_short = len(requests) > len(running) and any(
            _is_short(requests[name]) for name in self._bound if name in requests
        )
        return 0 if is_short else depths.pop()

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        requests, running, now = self.requests, self.running, time.monotonic()  # type: ignore[attr-defined]
        for new in scheduler_output.scheduled_new_reqs:  # more input of a session: its rows are dropped
            self._uncache_backlog(requests[new.req_id], scheduler_output.num_scheduled_tokens[new.req_id])
            self.latencies.begin(requests[new.req_id])
        plan = self.steps.begin(scheduler_output, requests, self.control.table(now), now, running)
        scheduler_output.num_spec_tokens_to_schedule = plan.width
        self._width = plan.width if scheduler_output.num_scheduled_tokens else 0  # without tokens nothing is drafted
        setattr(scheduler_output, PLAN, plan)
        self._place(scheduler_output.num_scheduled_tokens)

    @property
    def running_decodes(self) -> Counter[tuple[str, int, int]]:
        """Requests that decode after the latest step, by class, band and scheduled K; other threads may ask."""
        if not self.has_unfinished_requests():  # type: ignore[attr-defined]
            return Counter()  # no step follows the one that ended the last of them
        return Counter((state.label, state.band, state.chosen_k) for state in self.steps.decoding)

    @property
    def backlog_tokens(self) -> int:
        """Number of positions of these requests that the drafter has not read."""
        return self.steps.backlog_tokens

    def _place(self, scheduled: Collection[str]) -> None:
        """Prepare the drafts that follow a step of the `scheduled`; the synchronous scheduler does nothing here."""

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        """Note the outcome of one verified draft, then let vLLM count it too."""
        invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
        verified = self._verified.get(request_id, num_draft_tokens)
        self.steps.note_draft(request_id, num_draft_tokens, num_accepted_tokens, invalid, verified)
        return super().make_spec_decoding_stats(  # type: ignore[misc]
            spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id
        )

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process the step's outcome in vLLM, then count the step."""
        self.steps.skip_to(scheduler_output)
        self._verified = verified_tokens.of_output(model_runner_output) or {}
        self.latencies.step(time.monotonic(), time.time())
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.latencies.note_tokens()
        goes_on = bool(self.running) or self.has_unfinished_requests()  # type: ignore[attr-defined]
        device_s = device_time.of_output(model_runner_output)
        self.steps.end(scheduler_output, outputs, time.monotonic(), goes_on=goes_on, device_s=device_s)
        return outputs

    def set_pause_state(self, pause_state: Any) -> None:
        """Pause or resume vLLM; the next step begins when it is scheduled."""
        super().set_pause_state(pause_state)  # type: ignore[misc]
        self.steps.pause()

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        self.steps.restart(request.request_id)

    def _handle_stopped_request(self, request: Any) -> bool:
        self.latencies.end(request)
        return bool(super()._handle_stopped_request(request))  # type: ignore[misc]

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        self.latencies.end(request)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _free_request_blocks(self, request: Any) -> None:
        """Free the blocks, after removing those with a backlog from the prefix cache."""
        self._uncache_backlog(request)
        super()._free_request_blocks(request)  # type: ignore[misc]

    def _uncache_backlog(self, request: Any, scheduled: int = 0) -> None:
        """Remove the blocks with a backlog from the prefix cache: a request that needs them prefills them.

        `scheduled` positions at the end belong to the present step, not to the backlog.
        """
        backlog = self.steps.backlog(request.request_id)
        if backlog:
            read_tokens = min(max(0, request.num_computed_tokens - scheduled - backlog), self._drafter_length)
            cache = self.kv_cache_manager  # type: ignore[attr-defined]
            groups = zip(cache.get_block_ids(request.request_id), cache.coordinator.single_type_managers, strict=True)
            cache.evict_blocks({block for blocks, kind in groups for block in blocks[read_tokens // kind.block_size :]})

    def begin_drain(self) -> None:
        """Mark the engine as draining, for all gateways."""
        self._agent.begin_drain()

    def shutdown(self) -> None:
        """Deregister the engine, then shut vLLM's scheduler down."""
        self._agent.stop()
        super().shutdown()  # type: ignore[misc]


class SpecPilotScheduler(_SpecPilotScheduler, Scheduler):
    """vLLM's synchronous scheduler with K per request."""

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Cut each request's draft to its K, then hand the drafts to vLLM; there are none after a step of width 0."""
        if self._width == 0:
            return
        structured: list[tuple[DraftState, int]] = []
        for request_id, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=False):
            state = self.steps.states.get(request_id)
            if state is not None:
                del tokens[state.k :]
                if state.kind.is_structured:
                    structured.append((state, len(tokens)))
        super().update_draft_token_ids(draft_token_ids)
        for state, drafted in structured:
            request = self.requests.get(state.request_id)
            if request is not None and not request.is_prefill_chunk and len(request.spec_token_ids) < drafted:
                state.grammar_allows = len(request.spec_token_ids)


class SpecPilotAsyncScheduler(_SpecPilotScheduler, AsyncScheduler):
    """vLLM's asynchronous scheduler with K per request."""

    def _place(self, scheduled: Collection[str]) -> None:
        if scheduled:  # otherwise the decodes are those of an earlier step
            for state in self.steps.decoding:
                self.requests[state.request_id].spec_token_ids = [-1] * state.k
        if len(self.running) > len(scheduled):
            for request in self.running:
                if request.request_id not in scheduled:  # on V1 the worker dropped its drafts with it
                    request.spec_token_ids = []


def _served_name(vllm_config: Any) -> str:
    """The first name under which vLLM serves the model, as on its metrics."""
    name = vllm_config.model_config.served_model_name
    return str(name[0] if isinstance(name, list) else name)


def _is_short(request: Any) -> bool:
    """Whether a request must not stop after its next token."""
    length: int = request.num_output_tokens
    return min_tokens(request) > length + 1

"""The steps of one engine, from what vLLM schedules to what they deliver: K of the next drafts, evidence of the last.

Pure: the time is an argument, and of vLLM's objects only attributes are read.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from specpilot.engine_adapter.evidence.acceptance import Acceptance, Kind, Priors, kind_of, trials
from specpilot.engine_adapter.evidence.meter import Draft, Group, Meter, Outcome, StepShape
from specpilot.engine_adapter.evidence.tuning import FIRST_DRAFTS
from specpilot.engine_adapter.plan.planner import DraftState, Planner, StepPlan
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.policy.types import DEFAULT_CLASS, K_LIMIT, is_class_name

CLASS_ARGUMENT = "traffic_class"
"""The entry of a request's `extra_args` that names its class."""

CEILING_ARGUMENT = "k_max"
"""The entry that is the request's ceiling on K: a whole number, 0 for no speculation."""


_SHORTEST_S = 1e-4
"""The least that a step is taken to last, so that idleness is never divided by nothing."""
_STEP_SHARE = 0.05
"""What each step adds to the mean duration: a memory of 20."""
_FEWEST_DELIVERED = 2
"""Tokens that a request delivers beside its next draft: this step's, and the one after the draft."""


class _UnderWay(NamedTuple):
    """A step that has not ended: vLLM's output, when it was scheduled, the length of its requests' sequences."""

    output: Any
    scheduled_at: float
    context: int
    step: "_Step"


@dataclass(slots=True)
class _Step:
    """A step as it was scheduled; steps that repeat it are the same object."""

    tokens: Mapping[str, int]  # scheduled for each request, as vLLM says
    shape: StepShape
    plain: dict[str, Group] = field(default_factory=dict)  # of each decode without a draft to verify, by request
    due: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # K by the schedule, and band, of each draft to verify
    refused: set[str] = field(default_factory=set)  # requests whose draft the grammar cut short


class Steps:
    """Follows an engine's requests from step to step; counts with `meter` what the steps came to.

    `table` is the one in force. vLLM drafts for nobody while a request has more than `longest_to_draft` positions.
    `states` are the requests by id, `decoding` those that decode after the latest step.

    At K = 0 for all most steps repeat the one before: the same requests decode, and each leaves one more position to
    the drafter. Such a step is not planned, however many they are, and `_settle` makes up for it when something
    changes.
    Where anything is drafted its outcome may change K, so such a step is planned.

    A step's duration is the time from the previous step's end to its own, because under load that is the time a
    running request waits; after idleness it is the time since the step was scheduled. Idle is the engine too while
    nothing is scheduled and nothing under way. Times are monotonic, in seconds.

    In vLLM's asynchronous loop the host launches the next step before it takes in the outcome of the last one, so the
    time between two updates contains the launch of a step that is not among the two. Where a device runs the steps, the
    duration is therefore the time between their ends on the device (`device_s` of `end`): a launch that holds up the
    device delays the end of the step that was launched.
    """

    def __init__(self, planner: Planner, meter: Meter, table: KTable, longest_to_draft: int) -> None:
        self.table = table
        self.states: dict[str, DraftState] = {}
        self.decoding: list[DraftState] = []
        self.priors = Priors()
        self._planner = planner
        self._meter = meter
        self._longest_to_draft = longest_to_draft
        self._repeated = _Step({}, StepShape(0, 0, 0))
        self._repeated_plan = StepPlan(0)
        self._repeats_left = 0  # how many more steps may be as `_repeated`
        self._unsettled = 0  # how many were, and are not in the requests' backlogs yet
        self._outcome = Outcome()  # of the latest step
        self._plain: dict[str, Group] | None = None  # of the latest step, if all that it delivered is a token for each
        self._context = 0  # positions of the requests of the latest step, together
        self._under_way: deque[_UnderWay] = deque()
        self._drafts: dict[str, Draft] = {}  # verified in the first of them, by request
        self._ended_at: float | None = None
        self._idle_since: float | None = None
        self._step_s = 0.0  # the mean duration of a step
        self._learned_of: set[Kind] = set()  # kinds of which a first draft was verified since the last step was planned

    def begin(
        self, output: Any, requests: Mapping[str, Any], table: KTable, now: float, running: Sequence[Any] = ()
    ) -> StepPlan:
        """Take a step in that vLLM has scheduled, and plan the drafts after it.

        `output` is vLLM's `SchedulerOutput`, `requests` are its requests by id, `running` those that run, also the ones
        that have no token in the step.
        """
        self._note_idleness(output)
        if self._repeats_left and self._is_repeated(output, table):
            return self._repeat(output, now)
        self._settle()
        self._repeats_left = 0
        self._rest(output, table, now)
        self._forget(output, requests)
        self._use(table)
        self._begin_anew()
        plain: dict[str, Group] = {}
        due: dict[str, tuple[int, int]] = {}
        refused: set[str] = set()
        verified = prefill = longest = context = 0
        lengths: set[int] = set()  # tokens of each request that decodes
        decoding: list[DraftState] = []
        prefilling: list[DraftState] = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = requests[request_id]
            longest = max(longest, request.num_computed_tokens)
            context += request.num_computed_tokens
            state = self._state_of(request_id, request)
            drafted = len(output.scheduled_spec_decode_tokens.get(request_id) or ())
            if state.decoding:
                verified += scheduled
                lengths.add(scheduled)
                if drafted:
                    due[request_id] = (state.due, state.band)
                else:
                    plain[request_id] = self._group(state)
                if state.allowed == drafted:
                    refused.add(request_id)
                    if not drafted:
                        self._learn(state, Draft(state.label, state.band, 0, 0, is_refused=True))
            else:
                prefill += scheduled
            state.allowed, state.positions, state.prefills = None, scheduled, _reads_text(state, request, drafted)
            state.decoding = not request.is_prefill_chunk
            state.ceiling = max(0, min(state.stated, self._planner.k_max, _left(state, request, drafted)))
            (decoding if state.decoding else prefilling).append(state)
        can_draft = longest <= self._longest_to_draft
        waiting = self._waiting(output.num_scheduled_tokens, running)
        plan = self._planner.plan(decoding, table, can_draft=can_draft, prefilling=prefilling, waiting=waiting)
        if output.num_scheduled_tokens:
            shape = StepShape(len(plain) + len(due), verified, plan.slots, prefill, plan.read, len(lengths) <= 1)
            step = _Step(output.num_scheduled_tokens, shape, plain, due, refused)
            self._context = context
            self._under_way.append(_UnderWay(output, now, context, step))
            self.decoding = decoding
            if plan.width == 0 and not prefill and self._can_recur(step, decoding, plan):
                self._repeated, self._repeated_plan = step, plan
                self._repeats_left = self._planner.identical_steps_ahead(decoding, table)
        return plan

    def _repeat(self, output: Any, now: float) -> StepPlan:
        """Take a step in that is as `_repeated`."""
        self._repeats_left -= 1
        self._unsettled += 1
        self._context += len(self.decoding)
        self._under_way.append(_UnderWay(output, now, self._context, self._repeated))
        return self._repeated_plan

    def verified(self, request_id: str, drafted: int, accepted: int, invalid: int) -> None:
        """Note the outcome of one verified draft: of `drafted` tokens the grammar cut `invalid` off at the end.

        Only of a request that decodes: one that joins running decodes with one token left to prefill may have
        placeholders, so that all have as many positions, and nobody drafted those.
        """
        if not self._under_way or not drafted:
            return
        self._repeats_left = 0
        step = self._under_way[0].step
        due = step.due.get(request_id)
        state = self.states.get(request_id)
        if due is not None and state is not None:
            k, (scheduled, band) = drafted - invalid, due
            is_refused = invalid > 0 or request_id in step.refused
            draft = self._drafts[request_id] = Draft(state.label, band, k, accepted, k > scheduled, is_refused)
            self._learn(state, draft)

    def _learn(self, state: DraftState, draft: Draft) -> None:
        """Take in what came of a request's draft: where it lies now, and where others of its kind begin."""
        k, accepted, is_refused = draft.k, draft.accepted, draft.is_refused
        if state.acceptance.drafts < FIRST_DRAFTS:
            self.priors.note(state.kind, accepted, trials(k, accepted, is_refused=is_refused))
            self._learned_of.add(state.kind)
        state.note(k, accepted, is_probe=draft.is_probe, is_refused=is_refused)

    def _begin_anew(self) -> None:
        """Let requests of which nothing was verified yet begin where their kind does by now.

        So when traffic turns, the probes of one request tell about all that came with it.
        """
        if self._learned_of:
            for state in self.states.values():
                if state.acceptance.drafts == 0 and state.kind in self._learned_of:
                    state.acceptance = Acceptance(self.priors.of(state.kind))
            self._learned_of.clear()

    def skip_to(self, output: Any) -> None:
        """Forget the steps before that of `output`: vLLM dropped their outcome."""
        while self._under_way and self._under_way[0].output is not output and output.num_scheduled_tokens:
            self._under_way.popleft()

    def end(
        self, output: Any, outputs: Mapping[int, Any], now: float, *, goes_on: bool, device_s: float | None = None
    ) -> None:
        """Count a step; `outputs` says what it delivered, which is nothing to requests that ended meanwhile.

        `goes_on` says that there are unfinished requests, so that the next step's time begins here. `device_s` are the
        seconds on the device from the end of the step before to the end of this one; `None` where no device says so.
        """
        if not self._under_way or self._under_way[0].output is not output:
            return
        _, scheduled_at, context, step = self._under_way.popleft()
        seconds = now - (scheduled_at if self._ended_at is None else self._ended_at)
        if device_s is not None and self._ended_at is not None:  # else that time has an idle time in it
            seconds = device_s
        # In vLLM's asynchronous loop a step may be under way that delivers nothing: its time begins here too.
        self._ended_at = now if goes_on or self._under_way else None
        self._idle_since = now if self._ended_at is None else None
        self._step_s += (max(seconds, _SHORTEST_S) - self._step_s) * (_STEP_SHARE if self._step_s else 1.0)
        items = [item for client in outputs.values() for item in client.outputs if item.new_token_ids]
        is_whole = len(items) == len(step.plain) and not step.due
        if not is_whole or step.plain is not self._plain:
            self._plain = step.plain if is_whole else None
            self._outcome = _outcome(step, self._drafts, items)
            self._drafts.clear()
        self._meter.commit(step.shape, seconds, context, self._outcome)

    def waiting_s(self, now: float) -> float:
        """Return for how many seconds the oldest step under way has not ended, 0 without one; other threads may ask."""
        try:
            since = self._under_way[0].scheduled_at
        except IndexError:
            return 0.0
        ended_at = self._ended_at
        return now - (since if ended_at is None else max(since, ended_at))

    def pause(self) -> None:
        """Note that the engine pauses or goes on: the time in between is no step's."""
        self._ended_at = None

    def restart(self, request_id: str) -> None:
        """Note that a request was preempted: it will be prefilled anew."""
        self._settle()
        self._repeats_left = 0
        state = self.states.get(request_id)
        if state is not None:
            state.restart()

    def backlog(self, request_id: str) -> int:
        """Return how many of a request's latest positions the drafter has not seen."""
        self._settle()
        state = self.states.get(request_id)
        return state.backlog if state is not None else 0

    @property
    def next_width(self) -> int:
        """How wide the schedule has the next step's drafts: for so many slots of each request vLLM is to keep room."""
        return self._planner.next_width

    @property
    def backlog_tokens(self) -> int:
        """Positions of all that decode which the drafter has not seen; another thread may ask."""
        return sum(state.backlog for state in self.decoding) + self._unsettled * len(self.decoding)

    def _is_repeated(self, output: Any, table: KTable) -> bool:
        """Whether a step is of the same requests and tokens as `_repeated`, under the same schedule."""
        return (
            table is self.table
            and output.num_scheduled_tokens == self._repeated.tokens
            and not output.finished_req_ids
            and not output.scheduled_new_reqs
        )

    def _settle(self) -> None:
        if self._unsettled:
            count, self._unsettled = self._unsettled, 0  # first, so that `backlog_tokens` counts nothing twice
            self._planner.skip_steps(self.decoding, self.table, count)

    def _rest(self, output: Any, table: KTable, now: float) -> None:
        """Let the planner know of the idleness that the step ends, if it ends any."""
        if self._idle_since is not None and output.num_scheduled_tokens:
            self._planner.rest(table.probe_ratio, (now - self._idle_since) / self._step_s)
            self._idle_since = None

    def _forget(self, output: Any, requests: Mapping[str, Any]) -> None:
        """Forget the requests that have ended, and of a session that is given more input what it was and asked for."""
        for request_id in output.finished_req_ids:
            self.states.pop(request_id, None)
        for request in output.scheduled_new_reqs:
            state = self.states.get(request.req_id)
            if state is not None:
                state.restart()
                _, _, state.stated = _asked(requests[request.req_id])
                state.least = least_tokens(requests[request.req_id])

    def _note_idleness(self, output: Any) -> None:
        """Let no step's time begin before the next one is scheduled, if nothing is to be done now.

        vLLM's loop goes round so while all that is there waits for a grammar.
        """
        if not output.num_scheduled_tokens and not self._under_way:
            self._ended_at = None

    def _waiting(self, scheduled: Mapping[str, int], running: Sequence[Any]) -> int:
        """Return how many of those `running` decode and have no token in the step.

        Whose last tokens are under way has none in the next step either and does not count.
        """
        if len(running) <= len(scheduled):
            return 0
        states = [
            self.states.get(request.request_id)
            for request in running
            if request.request_id not in scheduled
            and request.num_output_tokens + request.num_output_placeholders < request.max_tokens
        ]
        return sum(state is not None and state.decoding for state in states)

    def _state_of(self, request_id: str, request: Any) -> DraftState:
        state = self.states.get(request_id)
        if state is None:
            traffic_class, temperature, ceiling = _asked(request)
            kind = kind_of(traffic_class, temperature, is_structured=request.use_structured_output)
            begin, least = self.priors.of(kind), least_tokens(request)
            state = self.states[request_id] = DraftState(request_id, kind, begin, ceiling, least)
            state.label = self._label(state)
        return state

    def _use(self, table: KTable) -> None:
        """Make `table` the one in force; a new one may name other classes."""
        if table is not self.table:
            self.table = table
            for state in self.states.values():
                state.label = self._label(state)

    def _can_recur(self, step: _Step, decoding: Sequence[DraftState], plan: StepPlan) -> bool:
        """Whether the next step will be as `step`, which drafts nothing, if the same requests come with a token each.

        So it is when nothing was verified, nobody catches up, nobody's band has changed, and K is 0 by the schedule,
        not because a request is too short to stop.
        """
        is_usual = not step.due and not step.refused and not plan.catch_up
        return is_usual and all(
            state.due == 0 and not state.least and step.plain.get(state.request_id) == self._group(state)
            for state in decoding
        )

    def _group(self, state: DraftState) -> Group:
        """What a decode without a draft counts for; who is never probed is not cold, as there is nothing to be told."""
        is_cold = state.acceptance.drafts == 0 and self._planner.may_probe(state, self.table)
        return Group(state.label, state.band, is_cold)

    def _label(self, state: DraftState) -> str:
        """The class that the request's evidence counts for: its own if the schedule knows it."""
        return state.traffic_class if state.traffic_class in self.table.rows else DEFAULT_CLASS


def _outcome(step: _Step, drafts: Mapping[str, Draft], items: Sequence[Any]) -> Outcome:
    """Return what a step with these verified `drafts` came to for who it delivered something to; `items` says what."""
    outcome = Outcome()
    tokens = outcome.tokens
    for item in items:
        name = item.request_id
        draft = drafts.get(name)
        if draft is not None:
            group = Group(draft.traffic_class, draft.band)
            outcome.drafts.append(draft)
        elif name in step.plain:
            group = step.plain[name]
            outcome.plain[group] = outcome.plain.get(group, 0) + 1
            if name in step.refused:
                outcome.refused.append(group.band)
        else:
            continue
        tokens[group] = tokens.get(group, 0) + len(item.new_token_ids)
    return outcome


def _reads_text(state: DraftState, request: Any, drafted: int) -> bool:
    """Whether a step with `drafted` tokens of a request to verify reads its prompt, and that is text alone.

    What a request is padded with as it joins is verified like a draft, and is no prompt. The position of a row is taken
    from the one after it, which is right for text, and not for an image where positions have three dimensions.
    """
    return not (state.decoding or drafted or request.mm_features)


def _left(state: DraftState, request: Any, drafted: int) -> int:
    """Return how many tokens the next draft of a request may have, of whose last one this step verifies `drafted`.

    It delivers no more than its `max_tokens`. And until it has its least number of tokens no draft reaches that number,
    whatever is accepted before it: vLLM bars the stop tokens of a whole step by how long the request was before it,
    and asynchronously takes all drafts under way for accepted.
    """
    left: int = request.max_tokens - request.num_output_tokens - _FEWEST_DELIVERED
    if state.least > request.num_output_tokens + 1:
        longest: int = request.num_output_tokens + max(request.num_output_placeholders, 1 + drafted)
        return min(left, state.least - longest - _FEWEST_DELIVERED)
    state.least = 0
    return left


def least_tokens(request: Any) -> int:
    """Return the number of tokens before which a request may not stop though something could end it; 0: none."""
    parameters = request.sampling_params
    is_bound = parameters is not None and bool(parameters.all_stop_token_ids)
    return int(parameters.min_tokens) if is_bound else 0


def _asked(request: Any) -> tuple[str, float, int]:
    """Return what a request states: its class (`default` when there is none or nonsense), temperature, ceiling on K.

    What is no whole number from 0 on is no ceiling.
    """
    parameters = request.sampling_params
    if parameters is None:
        return DEFAULT_CLASS, 0.0, K_LIMIT
    arguments = parameters.extra_args or {}
    name, ceiling = arguments.get(CLASS_ARGUMENT), arguments.get(CEILING_ARGUMENT)
    if not isinstance(name, str) or not is_class_name(name):
        name = DEFAULT_CLASS
    if type(ceiling) is not int or ceiling < 0:
        ceiling = K_LIMIT
    return name, parameters.temperature, ceiling

"""What the next drafts look like: K for each request, who is drafted for, and who catches up, once a step.

Pure and deterministic. K depends on class, band, load and past steps, never on the draft tokens that are being cut,
so the output's distribution stays the target's. A request's band is known as far as its drafts' outcomes are: those of
the step under way are not, and in vLLM's asynchronous loop those of the step before it neither.

*Width* is how many positions the drafter lays out for each request that it drafts for: the largest K of the step.
Width 0 means that nothing is drafted.

*Slots.* A slot is one position that the drafter lays out for one request in one step, so a step has as many slots as
requests drafted for times its width. P-EAGLE lays them out side by side in one pass. A sequential EAGLE head does as
many passes as the step is wide, and a slot is one request's place in one of them: the same number.

*Left out.* A request with K = 0 takes no slots: the drafter runs without it, and its latest position waits as a row.
Only who comes with several positions in the step, a prompt or verified drafts, is in the drafter's batch in any case:
which of its positions stay is known on the accelerator alone, and one more pass costs more than the slots.

*Backlog.* Who is left out leaves one position that is missing from the draft KV cache, and catches up (with
`engine_adapter.vllm.v1.backlog`, `v2.backlog`) before its next draft. So K may rise again at any time, and who is not
drafted for costs the drafter nothing. The plan says who catches up:

- those who are to be drafted for: the ones with the fewest rows first, as many as `rows_per_step` allows. Who has to
  wait for a later step is not drafted for yet, so no step takes much longer than its neighbours;
- of those at K = 0 nobody, until more rows would wait than may (`rows`), or one request's would be more than a step
  takes: then those with most rows, one at least. What equal backlogs leave may so be more than a step takes by a row
  for each that waits its turn, and goes through the drafter in two passes;
- who comes with several positions in the step (a prompt, verified drafts): what waits goes first.

*Held prompts.* In a step that drafts nothing, a short prompt leaves all its positions as rows (`held`), and no pass of
the drafter runs for it alone. Held prompts catch up together: when there are `HELD_TOGETHER` of them, or the first has
waited for `HELD_STEPS` steps. A request that is drafted for before that catches up by itself.

*Ceiling.* A request may state the most that its K may be, and its limit on tokens is another: of a draft that is longer
than what it may still deliver the rest would be verified for nothing. The schedule's K is cut to both before anything
else is planned, so the width, the slots and what counts as a probe follow from it, and a probe goes no deeper either.
At 0 nothing is verified for the request.

*Room.* K is cut likewise to what lets all running requests fit into vLLM's next step (`plan.token_budget`), a probe's
too. The width is also cut to what fits into the drafter's buffers beside the step that is under way, which vLLM filled
before the width was known. It keeps slots free there for `next_width`, so this binds in a step in which K rises and no
longer.

*Probes.* What is not verified is not known, so a request at K = 0 verifies a token now and then, if none of its drafts
was verified for `PROBE_AFTER` steps:

- in a step that drafts anyway;
- else in a step that reads a prompt, its own or another's, as the drafter then runs;
- else in a step that drafts for nothing but probes, with all others that are due.

A probe is as deep as the step is wide. Where nothing else drafts it is `PARALLEL_PROBE` deep, as what it costs is above
all the step, and one draft has to tell who is predictable; and never deeper than the largest K of its class's rows,
which is within the class's bounds. While its probes are accepted whole and its band is not the highest, the next
follows at once. A probe takes a request by itself, no whole step. Only classes with rows by band are probed: one row
for all of them is a pin, and there nothing could be learned that changes K.

A request's first draft is due at once. Until then all requests of a kind lie in the band in which the kind begins, so
where few of them would be worth drafting for that band stays at K = 0, and they would end before they are told apart.

Probes have a budget of time, in steps that draft nothing, and cost what the engine has learned that they take
(`law.probe_prices`); before that is known there are none but first drafts. Each step earns `probe_ratio`, and so does
the time of a step in which the engine is idle. First drafts are outside of it in steps that draft anyway, if the
backlog is at most `FIRST_DRAFT_ROWS`, a step's worth at a time: so one request that is found predictable has all
others drafted for once. Any other probe costs the positions that it gives the drafter to read and to lay out, the
tokens that it has verified, and, as the first one in a step that would not draft, what such a step and the one that
verifies take longer. Such a step begins when there is twice that, so that it tells about several requests. Who costs
least goes first: requests that have just begun, and those that were probed before. Follow-ups go ahead of the budget
and are charged to it, up to a debt as large as the budget may grow. Where nothing drafts, prompts get `PROMPT_SHARE`
of it, so that requests which arrive all the time leave something for those whose text turns later on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specpilot.engine_adapter.evidence.acceptance import Acceptance, Kind, trials
from specpilot.engine_adapter.evidence.tuning import START_ACCEPTANCE
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.token_budget import TokenBudget
from specpilot.engine_adapter.plan.tuning import (
    FIRST_DRAFT_ROWS,
    HELD_PROMPT,
    HELD_STEPS,
    HELD_TOGETHER,
    PARALLEL_PROBE,
    PROBE_AFTER,
    PROMPT_SHARE,
    ROWS_PER_STEP,
    SEQUENTIAL_PROBE,
)
from specpilot.policy.bands import BANDS
from specpilot.policy.types import K_LIMIT

PLAN = "specpilot_plan"
"""The attribute of a step's `SchedulerOutput` that holds its `StepPlan`, for the workers."""


_TOGETHER = 2.0
"""Times what a step that drafts for nothing but probes takes longer, which must be there before one begins: so at least
half of what it costs is for the requests that it tells about."""


class DraftState:
    """What the adapter keeps about one request: its class and band, whether it decodes yet, its backlog, its next K.

    `k` is how many tokens of its next draft are verified, `due` how many the schedule says within its `ceiling`: fewer
    when it is a probe, more while it waits to catch up. The ceiling is the one that it `stated`, or what is left to it:
    to its end, or until it is `least` tokens long, before which it may not stop (0: no matter). `band` is the one in
    which `k` was chosen; its own may have changed since.

    `label` is the class that its evidence counts for: its own, or `default` where the schedule does not know that.
    `backlog` is how many of its latest positions the drafter has not seen, `positions` how many it has in the step.
    `left_out` is how many of them it has because others alone were drafted for, by choice.
    `allowed` is how many tokens of its next draft its grammar allows, `None` when it cut nothing off.
    `prefills`: the positions that it has in the step are a prompt's, of text alone. `held_until` is the step by which
    its prompt goes through the drafter, `None` if that holds no prompt back.
    `verifies_at` is the step for which a draft of it was last planned. `needs_follow_up`: that was a probe, was
    accepted whole, and the request may belong in a higher band than it is in.
    """

    __slots__ = (
        "acceptance",
        "allowed",
        "backlog",
        "band",
        "ceiling",
        "decoding",
        "due",
        "held_until",
        "k",
        "kind",
        "label",
        "least",
        "left_out",
        "needs_follow_up",
        "positions",
        "prefills",
        "request_id",
        "stated",
        "traffic_class",
        "verifies_at",
    )  # fmt: skip

    def __init__(
        self, request_id: str, kind: Kind, begin: float = START_ACCEPTANCE, ceiling: int = K_LIMIT, least: int = 0
    ) -> None:
        self.request_id = request_id
        self.kind = kind
        self.ceiling = self.stated = ceiling
        self.least = least
        self.traffic_class = self.label = kind.traffic_class
        self.acceptance = Acceptance(begin)
        self.verifies_at: int | None = None
        self.needs_follow_up = False
        self.restart()

    def restart(self) -> None:
        """Forget the draft KV cache: the request is (again) to be prefilled, which makes it whole.

        Its acceptance so far still holds.
        """
        self.decoding = False
        self.prefills = False
        self.positions = 1
        self.backlog = self.left_out = 0
        self.held_until: int | None = None
        self.k = self.due = 0
        self.band = self.acceptance.band
        self.allowed: int | None = None

    def note(self, k: int, accepted: int, *, is_probe: bool, is_refused: bool) -> None:
        """Take in the outcome of a verified draft of `k` tokens; `is_refused`: a grammar cut it after `k`."""
        self.acceptance.note(accepted, trials(k, accepted, is_refused=is_refused))
        self.needs_follow_up = is_probe and accepted == k and not is_refused and self.acceptance.band < BANDS - 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The outcome for one step: `width` of its drafts, how many `slots` they take, who first catches up.

    `left_out` are the requests that the drafter's batch is without in a step that drafts; each of them has one
    position in the step. In a step that drafts nothing nobody is named. `held` are the requests with several positions
    in such a step of which every position waits as a row. `read` is how many positions the drafter reads without
    drafting from them: the backlog of `catch_up`, and in a step that drafts nothing all but the last position of each
    request that is not `held`.
    """

    width: int
    slots: int = 0
    catch_up: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    read: int = 0
    held: tuple[str, ...] = ()


class Planner:
    """Plans the drafts of one engine, at most `k_max` tokens each. Holds the probes' budget.

    `rows` is how many positions may wait for the drafter, over all requests, `rows_per_step` how many of them catch up
    in a step. `least_width` is that of a drafter which runs in every step, `room` what a step has room for. `prices`
    are what probes cost, `None` while that is not known; another thread replaces them.

    `next_width` is how wide the schedule has the next drafts, without regard to what the step under way has room for.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what there is to know of an engine
        self,
        k_max: int,
        rows: int,
        rows_per_step: int = ROWS_PER_STEP,
        least_width: int = 0,
        room: TokenBudget = TokenBudget(),  # noqa: B008 - frozen
        prices: ProbePrices | None = None,
    ) -> None:
        self.k_max = k_max
        self.next_width = 0
        self.prices = prices
        self._costs = prices  # of the step that is planned
        self._room = room
        self._rows = rows
        self._rows_per_step = rows_per_step
        self._least_width = least_width
        self._joins_all = least_width > 0  # a drafter that runs in every step reads every request's positions
        self._alone = min(k_max, PARALLEL_PROBE if room.is_parallel else SEQUENTIAL_PROBE)
        self._budget = 0.0  # steps' worth of time that probes may take now
        self._for_prompts = 0.0  # and how much of it those of prompts may, where nothing drafts
        self._charged: dict[str, float] = {}  # what probes of the step being planned were charged, by request
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

        `can_draft` says that vLLM will draft after this step at all. `prefilling` are its requests that go on
        prefilling in the next step. `waiting` more requests decode and had no token in this one.
        """
        self._costs = self.prices  # read once
        self._earn(table.probe_ratio, 1)
        if self._charged:
            self._charged.clear()
        everyone = (*states, *prefilling)
        deepest = self._room.deepest(len(everyone) + waiting)
        width = self._look_up(states, table if can_draft else None, len(states) + waiting, deepest)
        self.next_width = width
        if self.k_max == 0:
            return StepPlan(0)
        if can_draft:
            deepest = min(deepest, self._widest(everyone))
            if width > deepest:
                width = deepest
                for state in states:
                    state.k = min(state.k, deepest)
            width = max(width, self._least_width)
            if table.probed and table.probe_ratio > 0.0 and deepest and self._costs is not None:
                width = self._probe(states, table, self._costs, width, deepest)
        return self._draft(everyone) if width else self._draft_nothing(everyone)

    def identical_steps_ahead(self, states: Sequence[DraftState], table: KTable) -> int:
        """Return for how many more steps `plan` would answer as for the last one, at K = 0 for all by the schedule.

        None of them is a probe or catches up.
        """
        if not states or self.k_max == 0:
            return 0
        backlogs = [state.backlog for state in states]
        room = min((self._rows - sum(backlogs)) // len(states), self._rows_per_step - max(backlogs))
        room = min([room, *(state.held_until - self._step - 1 for state in states if state.held_until is not None)])
        self._costs = self.prices
        if table.probe_ratio > 0.0 and self._costs is not None:
            probed = [state for state in states if self._deepest_probe(state, table)]
            if probed:
                room = min(room, self._steps_to_probe(probed, self._costs, table.probe_ratio))
        return max(0, room)

    def _steps_to_probe(self, probed: Sequence[DraftState], costs: ProbePrices, ratio: float) -> int:
        """Return for how many steps more none of `probed` is due, or the budget does not suffice for any.

        Follow-ups wait for no more than the debt to be smaller than it may grow.
        """
        indebted, most = self._rows_per_step, self._most
        if any(state.needs_follow_up for state in probed):
            indebted = max(0, math.ceil(min((-most - self._budget) / ratio, float(self._rows_per_step))) - 1)
        due = min(self._due_at(state) for state in probed) - self._step - 1
        together = min(_TOGETHER * costs.drafting, most) - self._budget
        together = math.ceil(min(together / ratio, float(self._rows_per_step))) - 1
        gained = ratio - costs.position  # a step also adds a position to the backlog, after the next one was planned
        missing = costs.drafting + costs.of_draft(min(map(_backlog, probed)) - 1, 1, 1) - self._budget
        afforded = math.ceil(missing / gained) - 1 if gained > 0 and missing > 0 else 0
        return min(indebted, max(due, together, afforded if gained > 0 or missing <= 0 else self._rows_per_step))

    def skip_steps(self, states: Sequence[DraftState], table: KTable, count: int) -> None:
        """Account for `count` such steps, at most `identical_steps_ahead`."""
        for state in states:
            state.backlog += count
        self._earn(table.probe_ratio, count)

    def rest(self, ratio: float, steps: float) -> None:
        """Let the time of so many steps pass in which the engine is idle: it earns what a busy one does."""
        most = self._most
        self._budget = min(self._budget + steps * ratio, most)
        self._for_prompts = min(self._for_prompts + steps * ratio * PROMPT_SHARE, most)

    @property
    def _most(self) -> float:
        """The largest budget, and the largest debt: what the dearest probe costs. 0 while that is not known."""
        costs = self._costs
        if costs is None:
            return 0.0
        return costs.drafting + costs.of_draft(self._rows_per_step, self.k_max, self.k_max)

    def _earn(self, ratio: float, steps: int) -> None:
        """Let so many steps pass, a `ratio` of whose time is for probes."""
        self._step += steps
        self.rest(ratio, steps)

    def _widest(self, everyone: Sequence[DraftState]) -> int:
        """Return how wide the drafter may draft after the step under way."""
        if not self._room.is_parallel:
            return self.k_max
        return self._room.widest(len(everyone), sum([state.positions for state in everyone]))

    def _look_up(self, states: Sequence[DraftState], table: KTable | None, running: int, deepest: int) -> int:
        """Give each request the K of the schedule for so many `running`, cut to its ceiling and to `deepest`.

        Return the largest.
        """
        if table is not None and table.law is not None and states:
            return self._choose(states, table.law, deepest)
        width = 0
        k_of: dict[tuple[str, int, int], int] = {}
        for state in states:
            band = state.band = state.acceptance.band
            ceiling = state.ceiling
            k = k_of.get((state.traffic_class, band, ceiling))
            if k is None:
                k = min(ceiling, deepest, table.k(state.traffic_class, band, running)) if table is not None else 0
                k_of[state.traffic_class, band, ceiling] = k
                width = max(width, k)
            state.k = state.due = k
        return width

    @staticmethod
    def _choose(states: Sequence[DraftState], law: EngineLaw, deepest: int) -> int:
        """Give each request the K that the engine's law chooses, cut likewise; return the largest."""
        width = drafted = rows = 0
        for state in states:
            state.band = state.acceptance.band
        for state, chosen in zip(states, law.k_of(states), strict=True):
            k = state.k = state.due = min(state.ceiling, deepest, chosen)
            width = max(width, k)
            if k:
                drafted += 1
                rows += min(state.left_out, state.backlog)
                state.left_out = 0
        if 0 < drafted < len(states):
            for state in states:
                state.left_out += state.k == 0
        law.note_plan(len(states), drafted, rows)
        return width

    def _probe(self, states: Sequence[DraftState], table: KTable, costs: ProbePrices, width: int, room: int) -> int:
        """Set `k` of the requests to be probed in a step that is as wide without; return its width with them.

        No probe is deeper than `room`, 1 at least.
        """
        idle = [state for state in states if state.k == 0 and self._deepest_probe(state, table)]
        room = min(room, width if self.next_width else self._alone)
        if width:
            self._draft_first(idle, table, costs, width, room)
        for state in [state for state in idle if state.k == 0 and state.needs_follow_up]:
            if self._budget < -self._most:
                break
            self._budget -= costs.drafting if width == 0 else 0.0
            state.k = min(room, self._deepest_probe(state, table))
            width = max(width, state.k)
            cost = costs.of_draft(state.backlog, width, state.k)
            self._charged[state.request_id] = cost
            self._budget -= cost
        due = [state for state in idle if state.k == 0 and self._is_due(state)]
        reads_prompts = width == 0 and any(state.positions > 1 and not _may_be_held(state) for state in due)
        longer = 0.0 if width else costs.verifying if reads_prompts else costs.drafting
        if self._budget < min(_TOGETHER * longer, self._most):
            return width
        for state in sorted(due, key=_backlog):
            k = min(room, self._deepest_probe(state, table))
            cost = longer + costs.of_draft(state.backlog, max(width, k), k)
            if cost > self._budget:
                break
            if reads_prompts and state.positions > 1:
                if cost > self._for_prompts:
                    continue
                self._for_prompts -= cost
            self._budget -= cost
            self._charged[state.request_id] = cost - longer
            longer = 0.0
            state.k = k
            width = max(width, k)
        return width

    def _draft_first(
        self, idle: Sequence[DraftState], table: KTable, costs: ProbePrices, width: int, room: int
    ) -> None:
        """Probe those of `idle` that were never drafted for, in a step that is as wide, for a step's worth at most."""
        left = 1.0
        for state in idle:
            k = min(room, self._deepest_probe(state, table))
            cost = costs.of_draft(state.backlog, width, k)
            if state.verifies_at is None and state.backlog <= FIRST_DRAFT_ROWS and cost <= left:
                left -= cost
                state.k = k

    @staticmethod
    def may_probe(state: DraftState, table: KTable) -> bool:
        """Whether a request is ever probed under this schedule."""
        return table.probe_ratio > 0.0 and Planner._deepest_probe(state, table) > 0

    @staticmethod
    def _deepest_probe(state: DraftState, table: KTable) -> int:
        """Return how deep a probe of a request may go, 0 if it is not to be probed."""
        return min(table.deepest_probe(state.traffic_class), state.ceiling)

    def _is_due(self, state: DraftState) -> bool:
        return self._step >= self._due_at(state)

    @staticmethod
    def _due_at(state: DraftState) -> int:
        return 0 if state.verifies_at is None else state.verifies_at + PROBE_AFTER

    def _draft(self, everyone: Sequence[DraftState]) -> StepPlan:
        """Plan a step that drafts."""
        joins_all, room, has_enough = self._joins_all, self._rows_per_step, False
        behind = [state for state in everyone if state.backlog and (state.k or state.positions > 1 or joins_all)]
        behind.sort(key=_backlog)
        caught_up: list[str] = []
        read = 0
        for state in behind:
            room -= state.backlog
            if room >= 0 or state.positions > 1 or joins_all or not has_enough:
                caught_up.append(state.request_id)
                read += _catch_up(state)
                has_enough |= state.k > 0
            else:  # it waits; a probe is then not charged yet
                state.k = 0
                self._budget += self._charged.get(state.request_id, 0.0)
        width = self._least_width
        for state in everyone:
            if state.k:
                width = max(width, state.k)
                state.verifies_at = self._step
                state.needs_follow_up = False
        left = [] if joins_all else [state for state in everyone if state.k == 0 and state.positions == 1]
        if left:
            read += self._leave(left, room, caught_up)
        slots = width * (len(everyone) - len(left))
        return StepPlan(width, slots, tuple(caught_up), tuple([state.request_id for state in left]), read)

    def _draft_nothing(self, everyone: Sequence[DraftState]) -> StepPlan:
        """Plan a step that drafts nothing: everyone leaves a position. The hot path at K = 0."""
        read = sum([state.positions for state in everyone]) - len(everyone)
        caught_up: list[str] = []
        held: list[str] = []
        if read:
            room = self._rows // 2 - sum([state.backlog for state in everyone])
            for state in everyone:
                if _may_be_held(state) and state.positions <= room:
                    room -= state.positions
                    read -= state.positions - 1
                    state.backlog = state.positions - 1
                    state.held_until = self._step + HELD_STEPS
                    held.append(state.request_id)
                elif state.backlog and state.positions > 1:
                    read += _catch_up(state)
                    caught_up.append(state.request_id)
        read += self._leave(everyone, self._rows_per_step, caught_up)
        return StepPlan(0, 0, tuple(caught_up), read=read, held=tuple(held))

    def _leave(self, left: Sequence[DraftState], room: int, caught_up: list[str]) -> int:
        """Let each of `left` leave a row; return how many rows catch up because of that, `room` of them at best.

        The requests that do so are appended to `caught_up`.
        """
        read = self._catch_up_held(left, caught_up)
        backlogs = [state.backlog for state in left]
        excess = sum(backlogs) + len(left) - self._rows
        if excess > 0 or max(backlogs, default=0) >= self._rows_per_step:
            for state in sorted(left, key=_backlog, reverse=True):
                is_new = state.positions > 1 and state.backlog == state.positions - 1  # its rows come with this step
                if state.backlog and not is_new and (excess > 0 or room >= state.backlog or not caught_up):
                    excess -= state.backlog
                    room -= state.backlog
                    read += _catch_up(state)
                    caught_up.append(state.request_id)
        for state in left:
            state.backlog += 1
        return read

    def _catch_up_held(self, left: Sequence[DraftState], caught_up: list[str]) -> int:
        """Let the prompts of `left` that were held before this step catch up, if it is time; return how many rows."""
        held = [state for state in left if state.held_until is not None and state.positions == 1]
        if not held or (len(held) < HELD_TOGETHER and self._step < min([state.held_until or 0 for state in held])):
            return 0
        caught_up.extend([state.request_id for state in held])
        return sum([_catch_up(state) for state in held])


def _backlog(state: DraftState) -> int:
    return state.backlog


def _may_be_held(state: DraftState) -> bool:
    """Whether the positions that a request has in the step may all wait as rows: those of a short prompt, from 2 on."""
    return state.prefills and 1 < state.positions <= HELD_PROMPT and not state.backlog


def _catch_up(state: DraftState) -> int:
    """Let all rows of a request go through the drafter; return how many they are."""
    rows, state.backlog, state.held_until = state.backlog, 0, None
    return rows

"""Decides which requests catch up in a step, and which the drafter leaves out. Pure.

If a step leaves a request out of drafting, one position is missing from the request's draft KV cache. The input of this
position is kept as a *row* (`engine_adapter.vllm.v1.backlog`, `v2.backlog`); the rows of a request are its *backlog*. A
request's whole backlog goes through the drafter before its next draft, so K may rise again at any time.

A. In a step that drafts:

   A1. A request with several positions in the step (a prompt chunk or verified draft tokens) catches up. It stays in
       the drafter's batch, because the host does not know yet which of these positions are accepted. A separate pass
       over them in a later step would take longer than the request's slots in this step.
   A2. Requests with K > 0 catch up, smallest backlog first and probes last, up to `catch_up_rows` rows, one request at
       least. The others get K = 0 in this step and are postponed, so that no step takes much longer than the steps
       before and after it.
   A3. Requests with K = 0 and one position in the step are left out: they take no slots, and their position joins the
       backlog.

B. In a step that drafts nothing, the usual step at K = 0:

   B1. A short prompt is *deferred* if all backlogs with it fill at most half of `backlog_rows`: all its
       positions join the backlog, so that no pass of the drafter runs for it alone.
   B2. Other prompts and verified drafts go through the drafter, after the backlog of their request.
   B3. Each request's last position joins its backlog.

C. Before a position joins a backlog (A3, B3), these requests catch up:

   C1. Deferred prompts, together: when there are `DEFERRED_TOGETHER` of them, or `DEFERRED_STEPS` steps after the
       first.
   C2. Other requests, largest backlog first, in two cases. All backlogs together would exceed `backlog_rows`: requests
       catch up until the total fits. One backlog has reached `catch_up_rows`: the request with the largest backlog
       catches up, unless A2 has used up `catch_up_rows` in this step. In both cases more requests catch up while their
       rows fit into the rest of `catch_up_rows`. Other backlogs that have reached `catch_up_rows` grow by a row, and in
       the next step the largest of them is read.

A pass of the drafter reads at most `max_num_batched_tokens` positions. A larger backlog takes two passes.
"""

from collections.abc import Sequence
from operator import attrgetter

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.step_plan import StepPlan

DEFERRED_PROMPT = 48
"""Tokens of the longest prompt that is deferred. A pass of the drafter for a prompt alone takes 2 ms, nearly
independent of its tokens; a step takes 5 ms (an 8B model on an H200). A deferred
prompt waits for at most `DEFERRED_STEPS` steps, and each adds a row: 48 + 16 rows are not more than
`probes.FIRST_DRAFT_ROWS`, so the request's first draft is still free."""

DEFERRED_TOGETHER = 8
"""Deferred prompts that go through the drafter in one pass. A larger number takes fewer passes and delays the first
drafts of these requests."""

DEFERRED_STEPS = 16
"""Steps after which a deferred prompt catches up at the latest. Until then the prefix cache has blocks without draft
KV."""

_BACKLOG = attrgetter("backlog")


class CatchUp:
    """Decides which requests of one engine catch up.

    `backlog_rows` bounds the backlogs of all requests together. `catch_up_rows` bounds the rows that requests with K >
    0 catch up in one step (A2), and is the backlog from which on the request with the largest backlog catches up (C2).
    A step may read more rows than this: those of A1, of C1 and of the first request of C2, and those of further
    requests of C2 as long as all backlogs together exceed `backlog_rows`.

    `least_width` is above 0 for a drafter that must run in every step. It then runs with at least this width, and
    `reads_all` is true: no request is left out, and no prompt is deferred. A backlog from steps in which vLLM does not
    draft is read at once. `drafted_at` is the number of the last step that drafted.

    Without `backlog_rows` and `least_width`, the drafter itself reads every step, also one that drafts nothing:
    `keeps_rows` is false, and there are no backlogs. `width_of_all` is the least width at which all requests have
    slots; `None`: the drafter leaves out those with K = 0.

    `narrowest` is the least width of a step that drafts: K_max for a drafter whose block has a constant width.

    `in_lockstep`: other engines make the same passes (`vllm.data_parallel`). Then the width is at least `least_width`
    also in a step in which vLLM does not draft, and what the drafter misses there is never read.
    """

    def __init__(
        self,
        backlog_rows: int,
        catch_up_rows: int,
        least_width: int = 0,
        narrowest: int = 1,
        *,
        in_lockstep: bool = False,
    ) -> None:
        self.least_width = least_width
        self.narrowest = narrowest
        self.keeps_rows = not in_lockstep and (backlog_rows > 0 or least_width > 0)
        self.reads_all = least_width > 0 or not self.keeps_rows
        self.width_of_all = least_width if self.reads_all else None
        self.drafted_at = 0
        self._backlog_rows = backlog_rows
        self._rows_per_step = catch_up_rows

    def drafting(self, batch: Sequence[DraftState], step: int) -> tuple[StepPlan, list[str]]:
        """Return the plan of step number `step`, which drafts, and the requests that it postpones (A2)."""
        reads_all, room, has_draft = self.reads_all, self._rows_per_step, False
        behind = [state for state in batch if state.backlog and (state.k or state.positions > 1 or reads_all)]
        behind.sort(key=_probes_last)
        caught_up: list[str] = []
        postponed: list[str] = []
        read = 0
        for state in behind:
            room -= state.backlog
            if room >= 0 or state.positions > 1 or reads_all or not has_draft:  # A1, A2
                caught_up.append(state.request_id)
                read += state.catch_up()
                has_draft |= state.k > 0
            else:
                state.k = 0
                postponed.append(state.request_id)
        width = self.least_width
        for state in batch:
            if state.k:
                width = max(width, state.k, self.narrowest)
                state.drafted_at = self.drafted_at = step
                state.needs_follow_up = False
        left_out = [] if reads_all else [state for state in batch if state.k == 0 and state.positions == 1]  # A3
        if left_out:
            read += self._leave_positions(left_out, room, caught_up, step)
        slots = width * (len(batch) - len(left_out))
        names = tuple([state.request_id for state in left_out])
        return StepPlan(width, slots, tuple(caught_up), names, read), postponed

    def drafting_nothing(self, batch: Sequence[DraftState], step: int) -> StepPlan:
        """Return the plan of step number `step`, which drafts nothing."""
        if not self.keeps_rows:
            return StepPlan(self.least_width)
        read = sum([state.positions for state in batch]) - len(batch)
        caught_up: list[str] = []
        deferred: list[str] = []
        if read:
            room = self._backlog_rows // 2 - sum([state.backlog for state in batch])
            for state in batch:
                if may_be_deferred(state) and state.positions <= room:  # B1
                    room -= state.positions
                    read -= state.positions - 1
                    state.backlog = state.positions - 1
                    state.deferred_until = step + DEFERRED_STEPS
                    deferred.append(state.request_id)
                elif state.backlog and state.positions > 1:  # B2
                    read += state.catch_up()
                    caught_up.append(state.request_id)
        read += self._leave_positions(batch, self._rows_per_step, caught_up, step)  # B3
        return StepPlan(0, 0, tuple(caught_up), read=read, deferred=tuple(deferred))

    def identical_steps_ahead(self, states: Sequence[DraftState], step: int) -> int:
        """Return how many steps after `step` can draft nothing before one of `states` has to catch up."""
        if not self.keeps_rows:
            return self._rows_per_step  # as long as a backlog would allow
        backlogs = [state.backlog for state in states]
        room = min((self._backlog_rows - sum(backlogs)) // len(states), self._rows_per_step - max(backlogs))
        return min([room, *(state.deferred_until - step - 1 for state in states if state.deferred_until is not None)])

    def skip_steps(self, states: Sequence[DraftState], count: int) -> None:
        """Add the positions of `count` steps that drafted nothing to the backlogs of `states`."""
        if self.keeps_rows:
            for state in states:
                state.backlog += count

    def _leave_positions(self, left_out: Sequence[DraftState], room: int, caught_up: list[str], step: int) -> int:
        """Add a row to the backlog of each of `left_out`; return how many rows catch up before that.

        The requests that catch up are appended to `caught_up`. `room`: rows that may still catch up in this step.
        """
        read = _catch_up_deferred(left_out, caught_up, step)  # C1
        backlogs = [state.backlog for state in left_out]
        excess = sum(backlogs) + len(left_out) - self._backlog_rows
        if excess > 0 or max(backlogs, default=0) >= self._rows_per_step:  # C2
            behind = sorted(filter(_may_catch_up, left_out), key=_BACKLOG, reverse=True)
            must = _number_above(behind, excess) or int(room > 0 or not caught_up)
            for place, state in enumerate(behind):
                if place < must or state.backlog <= room:
                    room -= state.backlog
                    read += state.catch_up()
                    caught_up.append(state.request_id)
        for state in left_out:
            state.backlog += 1
        return read


def _may_catch_up(state: DraftState) -> bool:
    """Whether a request has a backlog, and not that of a prompt that is deferred in this very step."""
    return state.backlog > 0 and state.positions == 1


def _number_above(behind: Sequence[DraftState], excess: int) -> int:
    """Return how many of the first requests have to catch up before `excess` rows are gone."""
    number = 0
    while excess > 0 and number < len(behind):
        excess -= behind[number].backlog
        number += 1
    return number


def _probes_last(state: DraftState) -> tuple[bool, int]:
    """Return the key of the order of A2: otherwise probes could postpone a scheduled draft again and again."""
    return state.k > state.chosen_k, state.backlog


def may_be_deferred(state: DraftState) -> bool:
    """Whether a request's positions in the step are a short prompt, so that all of them may join its backlog."""
    return state.is_text_prompt and 1 < state.positions <= DEFERRED_PROMPT and not state.backlog


def _catch_up_deferred(left_out: Sequence[DraftState], caught_up: list[str], step: int) -> int:
    """Let the prompts that earlier steps deferred catch up, if it is time (C1); return the number of rows."""
    deferred = [state for state in left_out if state.deferred_until is not None and state.positions == 1]
    if not deferred or (
        len(deferred) < DEFERRED_TOGETHER and step < min([state.deferred_until or 0 for state in deferred])
    ):
        return 0
    caught_up.extend([state.request_id for state in deferred])
    return sum([state.catch_up() for state in deferred])

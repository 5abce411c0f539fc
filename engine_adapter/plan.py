"""What the next drafts look like: K for each request, the drafter's width, and who catches up, once a step.

Pure and deterministic. K depends on class, load and past steps, never on the draft tokens that are being cut, so
the output's distribution stays the target's.

*Width* is how many positions per request the drafter lays out: the largest K of the step. Width 0 means that nothing
is drafted.

*Backlog.* Whoever is not drafted for leaves one position that is missing from the draft KV cache, and catches up (with
`engine_adapter.backlog`) before the next draft. So K may rise again at any time, and who is not drafted for costs the
drafter nothing. The plan says who catches up:

- where the schedule drafts, everyone: those with the fewest rows first, as many as `rows_per_step` allows. Who has to
  wait for a later step is not drafted for yet, so no step takes much longer than its neighbours;
- at K = 0 for all nobody, until more rows would wait than may (`rows`), or one request's would be more than a step
  takes: then those with most rows, one at least. What equal backlogs leave may so be more than a step takes by a row
  for each that waits its turn, and goes through the drafter in two passes;
- who comes with several positions in the step (a prompt, verified drafts): what waits goes first.

*Probe steps.* Every step earns `probe_ratio` of a probe step, which verifies requests to K_max. Whole steps, because a
single deeper draft widens the drafter for the whole batch. At K = 0 for all, only those with the fewest rows catch up
and are probed: the requests that have just begun, and those that were probed before. `PROBE_ROWS` bounds their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapter.apply import KTable

CATCH_UP = "specpilot_catch_up"
"""The attribute of a step's `SchedulerOutput` that names the requests which catch up, for the workers."""

ROWS_PER_STEP = 1024
"""Rows that catch up in one step where K rises: a short prompt's worth of time."""

PROBE_ROWS = 4
"""Rows that catch up for a probe at K = 0, over the positions of its drafts; a row takes no sampling and no logits, so
catching up then costs about as much as drafting does."""


class DraftState:
    """What the adapter keeps about one request: its class, whether it decodes yet, its backlog, its next K.

    `k` is how many tokens of its next draft are verified, `due` how many the schedule says: fewer when it is a probe,
    more while it waits to catch up.

    `label` is the class that its evidence counts for: its own, or `default` where the schedule does not know that.
    `backlog` is how many of its latest positions the drafter has not seen, `positions` how many it has in the step.
    `is_structured`: it follows a grammar. `allowed` is how many tokens of its next draft that allows, `None` when it
    cut nothing off.
    """

    __slots__ = (
        "allowed", "backlog", "decoding", "due", "is_structured", "k", "label", "positions", "request_id",
        "traffic_class",
    )  # fmt: skip

    def __init__(self, request_id: str, traffic_class: str, *, is_structured: bool = False) -> None:
        self.request_id = request_id
        self.traffic_class = self.label = traffic_class
        self.is_structured = is_structured
        self.restart()

    def restart(self) -> None:
        """Forget the draft KV cache: the request is (again) to be prefilled, which makes it whole."""
        self.decoding = False
        self.positions = 1
        self.backlog = 0
        self.k = self.due = 0
        self.allowed: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The outcome for one step: `width` of its drafts, and who first catches up.

    `read` is how many positions the drafter reads without drafting from them: the backlog of `catch_up`, and what
    requests come with, but for the last, in a step that drafts nothing.
    """

    width: int
    catch_up: tuple[str, ...] = ()
    read: int = 0


class Planner:
    """Plans the drafts of one engine. Holds the probe credit.

    `rows` is how many positions may wait for the drafter, over all requests, `rows_per_step` how many of them catch up
    in a step. `least_width` is that of a drafter which runs in every step.
    """

    def __init__(self, k_max: int, rows: int, rows_per_step: int = ROWS_PER_STEP, least_width: int = 0) -> None:
        self._k_max = k_max
        self._rows = rows
        self._rows_per_step = rows_per_step
        self._least_width = least_width
        self._credit = 0.0

    def plan(
        self,
        states: Sequence[DraftState],
        table: KTable,
        *,
        can_draft: bool = True,
        prefilling: Sequence[DraftState] = (),
    ) -> StepPlan:
        """Set `k` of each of `states`, the requests that decode in the next step, and return the step's plan.

        `can_draft` says that vLLM will draft after this step at all. `prefilling` are its requests that go on
        prefilling in the next step.
        """
        deepest, is_shallow = self._look_up(states, table if can_draft else None)
        is_probe = self._is_probe_due(table.probe_ratio, is_wanted=is_shallow and can_draft)
        if self._k_max == 0:
            return StepPlan(0)
        width = self._k_max if is_probe else max(deepest, self._least_width if can_draft else 0)
        everyone = (*states, *prefilling)
        if width == 0:
            return self._leave(everyone)
        if is_probe:
            for state in states:
                state.k = self._k_max
        behind = [state for state in everyone if state.backlog]
        if not behind:
            return StepPlan(width)
        behind.sort(key=_backlog)
        room, has_enough = self._rows_per_step, False
        if is_probe and deepest == 0:
            room = PROBE_ROWS * len(states) * (self._k_max + 1)
            has_enough = not all(state.backlog for state in states)
        caught_up: list[str] = []
        read = 0
        for state in behind:
            room -= state.backlog
            if room >= 0 or state.positions > 1 or not has_enough:
                caught_up.append(state.request_id)
                read += state.backlog
                state.backlog = 0
                has_enough = True
            else:
                state.k = 0
                state.backlog += 1
        return StepPlan(width, tuple(caught_up), read)

    def repeats(self, states: Sequence[DraftState], table: KTable, width: int, length_left: int) -> int:
        """Return how many more steps `plan` would leave as the last, of this `width` and with K as the schedule says.

        None of them is a probe or lets anyone catch up, and none that drafts is of a sequence which has become more
        than `length_left` longer.
        """
        if not states or self._k_max == 0:
            return 0
        if width == 0:
            backlogs = [state.backlog for state in states]
            room = min((self._rows - sum(backlogs)) // len(states), self._rows_per_step - max(backlogs))
        else:
            room = length_left // (1 + width)
        if table.probe_ratio > 0.0 and any(state.k < self._k_max for state in states):
            room = min(room, int((1.0 - self._credit) / table.probe_ratio) - 1)
        return max(0, room)

    def repeat(self, states: Sequence[DraftState], table: KTable, width: int, count: int) -> None:
        """Account for `count` such steps, at most `repeats`."""
        if width == 0:
            for state in states:
                state.backlog += count
        for _ in range(count):
            self._earn(table.probe_ratio)

    def _look_up(self, states: Sequence[DraftState], table: KTable | None) -> tuple[int, bool]:
        """Give each request the K of the schedule; return the largest, and whether any is below K_max."""
        deepest = 0
        is_shallow = False
        k_of: dict[str, int] = {}
        running = len(states)
        for state in states:
            k = k_of.get(state.traffic_class)
            if k is None:
                k = k_of[state.traffic_class] = table.k(state.traffic_class, running) if table is not None else 0
                deepest = max(deepest, k)
                is_shallow |= k < self._k_max
            state.k = state.due = k
        return deepest, is_shallow

    def _is_probe_due(self, ratio: float, *, is_wanted: bool) -> bool:
        self._earn(ratio)
        if not is_wanted or self._credit < 1.0:
            return False
        self._credit -= 1.0
        return True

    def _earn(self, ratio: float) -> None:
        self._credit = min(1.0, self._credit) + ratio

    def _leave(self, everyone: Sequence[DraftState]) -> StepPlan:
        """Plan a step that drafts nothing: everyone leaves a position. The hot path at K = 0."""
        backlogs = [state.backlog for state in everyone]
        read = sum([state.positions for state in everyone]) - len(everyone)
        excess, room = sum(backlogs) + len(everyone) - self._rows, self._rows_per_step
        is_full = excess > 0 or max(backlogs, default=0) >= room
        caught_up: list[str] = []
        if is_full or read:
            for state in sorted(everyone, key=_backlog, reverse=True):
                fits = is_full and (excess > 0 or room >= state.backlog or not caught_up)
                if state.backlog and (fits or state.positions > 1):
                    excess -= state.backlog
                    room -= state.backlog
                    read += state.backlog
                    caught_up.append(state.request_id)
                    state.backlog = 0
        for state in everyone:
            state.backlog += 1
        return StepPlan(0, tuple(caught_up), read)


def _backlog(state: DraftState) -> int:
    return state.backlog

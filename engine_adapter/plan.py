"""What the next drafts look like: K for each request and the drafter's width, once a step.

Pure and deterministic. K depends on class, load and past steps, never on the draft tokens that are being cut, so
the output's distribution stays the target's.

*Width* is how many positions per request the drafter lays out: the largest K of the step. Width 0 means that the
drafter does not run. It runs (width 1 at least) after a step that prefilled or verified drafts, because only a step of
single decodes can be made up for later.

*Backlog.* After a step of width 0 each of its requests lacks one position in the draft KV cache. The drafter makes
these up when it next runs (`engine_adapter.backlog`), so K may rise again at any time. At most `rows` are kept, over
all requests; before there would be more, the drafter runs at width 1 to catch up. Where vLLM cannot draft it catches
up in the same steps, and only the step's own last position of each request waits on.

*Probe steps.* Every step earns `probe_ratio` of a probe step; a probe step verifies every request to K_max. Whole
steps, because a single deeper draft widens the drafter for the whole batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapter.apply import KTable

ROW_LIMIT = 4096


def row_limit(max_num_batched_tokens: int) -> int:
    """Return how many positions may wait for the drafter; one pass of it takes `max_num_batched_tokens`."""
    return min(ROW_LIMIT, max_num_batched_tokens)


class DraftState:
    """What the adapter keeps about one request: its class, whether it decodes yet, its backlog, its next K.

    `k` is how many tokens of its next draft are verified, `due` how many the schedule says: fewer when it is a probe.

    `label` is the class that its evidence counts for: its own, or `default` where the schedule does not know that.
    `backlog` is how many of its latest positions the drafter has not seen. `allowed` is how many tokens of its next
    draft the request's grammar allows, `None` when it cut nothing off.
    """

    __slots__ = ("allowed", "backlog", "decoding", "due", "k", "label", "traffic_class")

    def __init__(self, traffic_class: str) -> None:
        self.traffic_class = self.label = traffic_class
        self.restart()

    def restart(self) -> None:
        """Forget the draft KV cache: the request is (again) to be prefilled, which makes it whole."""
        self.decoding = False
        self.backlog = 0
        self.k = self.due = 0
        self.allowed: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The outcome for one step: `width` for its drafter, and whether that first catches up with a backlog."""

    width: int
    has_backlog: bool = False


class Planner:
    """Plans the drafts of one engine. Holds the probe credit and the number of rows that wait for the drafter."""

    def __init__(self, k_max: int, rows: int) -> None:
        self._k_max = k_max
        self._rows_limit = rows
        self._rows = 0
        self._credit = 0.0

    def plan(
        self,
        states: Sequence[DraftState],
        table: KTable,
        *,
        is_plain: bool,
        can_draft: bool = True,
        prefilling: Sequence[DraftState] = (),
    ) -> StepPlan:
        """Set `k` of each of `states`, the requests that decode in the next step, and return the step's plan.

        `is_plain` says that the step being drafted after neither prefills nor verifies a draft, `can_draft` that vLLM
        will draft after it at all. `prefilling` are its requests that go on prefilling in the next step.
        """
        deepest = 0
        has_shallow = False
        k_of: dict[str, int] = {}
        running = len(states)
        for state in states:
            k = k_of.get(state.traffic_class)
            if k is None:
                k = k_of[state.traffic_class] = table.k(state.traffic_class, running) if can_draft else 0
                deepest = max(deepest, k)
                has_shallow |= k < self._k_max
            state.k = state.due = k
        self._credit = min(1.0, self._credit) + table.probe_ratio
        if has_shallow and can_draft and self._credit >= 1.0:
            self._credit -= 1.0
            deepest = self._k_max
            for state in states:
                state.k = self._k_max
        if self._k_max == 0:
            return StepPlan(0)
        if deepest == 0 and is_plain and self._rows + running <= self._rows_limit:
            self._rows += running
            for state in states:
                state.backlog += 1
            return StepPlan(0)
        has_backlog = self._rows > 0
        waiting = 0 if can_draft else 1
        self._rows = waiting * (running + len(prefilling))
        for state in (*states, *prefilling):
            state.backlog = waiting
        return StepPlan(max(deepest, 1), has_backlog)

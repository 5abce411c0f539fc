"""What the next drafts look like: K for each request and the drafter's width, once a step.

Pure and deterministic. K depends on class, load and past steps, never on the draft tokens that are being cut, so
the output's distribution stays the target's.

*Width* is how many positions per request the drafter lays out: the largest K of the step. Width 0 means that the
drafter does not run. A step that prefills always runs it (width 1 at least), so the prompt's draft KV cache is
whole and prefix-cached prompt blocks serve speculating requests.

*Holes.* A decode step of width 0 leaves the running requests' draft KV cache without those positions. Drafts of
such a request would still be lossless, but bad, so it stays at K = 0 until it ends or is preempted (its next
prefill fills the cache again); requests that come later speculate. The drafter is switched off only after
`DARK_AFTER_STEPS` steps without need, so a load that crosses a threshold back and forth leaves no holes.

*Probe steps.* Every step earns `probe_ratio` of a probe step; a probe step verifies every request that can still
draft to K_max. Whole steps, because a single deeper draft widens the drafter for the whole batch. While the
drafter is off the credit is saved, `CREDIT_LIMIT` at most, and spent on the next requests that start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_adapter.apply import KTable

DARK_AFTER_STEPS = 16
CREDIT_LIMIT = 8.0


class DraftState:
    """What the adapter keeps about one request: its class, whether it decodes yet, holes, its next K.

    `label` is the class that its evidence counts for: its own, or `default` where the schedule does not know that.
    """

    __slots__ = ("decoding", "holed", "k", "label", "probing", "traffic_class")

    def __init__(self, traffic_class: str) -> None:
        self.traffic_class = self.label = traffic_class
        self.restart()

    def restart(self) -> None:
        """Forget the draft KV cache: the request is (again) to be prefilled, which makes it whole."""
        self.decoding = False
        self.holed = False
        self.k = 0
        self.probing = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The outcome for one step: `width` for its drafter, and whether its drafts are probes."""

    width: int
    is_probe: bool


class Planner:
    """Plans the drafts of one engine. Holds the probe credit and the length of the spell without need."""

    def __init__(self, k_max: int) -> None:
        self._k_max = k_max
        self._credit = 0.0
        self._idle_steps = 0

    def plan(self, states: Sequence[DraftState], table: KTable, *, is_prefilling: bool) -> StepPlan:
        """Set `k` of each of `states`, the requests that decode in the next step, and return the step's plan.

        `is_prefilling` says that the step being drafted after prefills at least one token.
        """
        running = len(states)
        wanted = 0
        deepest = 0
        has_shallow = False
        k_of: dict[str, int] = {}
        for state in states:
            state.probing = False
            k = k_of.get(state.traffic_class)
            if k is None:
                k = k_of[state.traffic_class] = table.k(state.traffic_class, running)
                wanted = max(wanted, k)
            if state.holed:
                state.k = 0
            else:
                has_shallow |= k < self._k_max
                state.k = k
                deepest = max(deepest, k)
        self._credit = min(CREDIT_LIMIT, self._credit + table.probe_ratio)
        if has_shallow and self._credit >= 1.0:
            self._credit -= 1.0
            for state in states:
                if not state.holed:
                    state.probing = state.k < self._k_max
                    state.k = self._k_max
            return StepPlan(width=self._k_max, is_probe=True)
        return StepPlan(width=self._width(states, deepest, wanted, is_prefilling=is_prefilling), is_probe=False)

    def _width(self, states: Sequence[DraftState], deepest: int, wanted: int, *, is_prefilling: bool) -> int:
        self._idle_steps = 0 if wanted else self._idle_steps + 1
        if deepest:
            return deepest
        if self._k_max == 0:
            return 0
        keeps_whole = self._idle_steps <= DARK_AFTER_STEPS and not all(state.holed for state in states)
        if is_prefilling or keeps_whole:
            return 1
        for state in states:
            state.holed = True
        return 0

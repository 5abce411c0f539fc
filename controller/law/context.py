"""What the law is given of a pool besides its evidence, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specpilot.controller.law.k_table import Ranges, k_at
from specpilot.controller.law.reason import Reason
from specpilot.policy.canary import Arm
from specpilot.policy.freeze import Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.graphs import Graphs
from specpilot.policy.types import Policy, Schedule, Trial


@dataclass(frozen=True, slots=True)
class PoolContext:
    """A pool as registered: what holds for all of its engines that can speculate.

    Where they differ, `k_max` and `static_k` are the smallest, `max_num_seqs` is the largest (`pools.pool_contexts`).

    `in_force` is the schedule published last, `None` before the first. While a canary runs, `policy` is the one whose
    turn it is, and `arm` tells which one that is; `None` without a canary. `remaining_arm` is the arm whose policy
    stays when a canary has ended. `hold` is what an operator froze the pool at, `None` without a freeze: in mode
    `advise` engines then have what is in force and not their static K. `graphs` are the CUDA graphs of its engines;
    `None` for none, or not known.
    `engines_version` is the latest version that any of them applied, 0 for none: Redis may have lost what they hold.
    """

    model: str
    pool: str
    policy: Policy
    k_max: int
    static_k: int
    max_num_seqs: int
    in_force: Schedule | None
    arm: Arm | None = None
    remaining_arm: Arm = Arm.PRESENT
    hold: Hold | None = None
    graphs: Graphs | None = None
    engines_version: int = 0

    @property
    def fallback_k(self) -> int:
        """The operator's static K, as far as the engines can follow it."""
        wanted = self.static_k if self.policy.static_k is None else self.policy.static_k
        return max(0, min(wanted, self.k_max))

    @property
    def unsteered_k(self) -> int:
        """The K of engines to which nothing is published: their own, until the operator's static K was once."""
        if self.in_force is None and not self.engines_version:
            return max(0, min(self.static_k, self.k_max))
        return self.fallback_k

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the smallest and largest K that class `name` may have; a pin makes them equal."""
        wanted = self.policy.of_class(name)
        low = self.policy.k_min if wanted.k_min is None else wanted.k_min
        high = self.policy.k_max if wanted.k_max is None else wanted.k_max
        if wanted.pin is not None:
            low = high = wanted.pin
        high = self.k_max if high is None else max(0, min(high, self.k_max))
        return min(max(0, low), high), high


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick decided for one pool.

    `proposed` are the rows that the law would have, `publish` those that the engines shall have, `None` when nothing is
    to be published: mode `advise`, which once withdraws by the static K what `act` left. `gain_ratio` is what the best
    table is predicted to gain at the present load, as a ratio minus 1, over the one that the law goes on from, in what
    the policy maximises; in mode `advise` and where an SLO breaks, in throughput over what engines have. `None` when
    unknown.
    `evidence` holds every number that was looked at, ready for JSON. `log_gain` is what adaptive K gained over the
    static K in a window of the hold-out, if one could be compared by this tick. `standing` is told of a pool that is
    frozen at its current K: the rows and the share of probes that were in force when that began, or would have been but
    for a turn of the hold-out or of a canary; `None` where there were none.
    """

    reason: Reason
    proposed: Ranges
    publish: Ranges | None
    probe_ratio: float
    gain_ratio: float | None
    evidence: Mapping[str, Any]
    trial: Trial | None = None
    log_gain: LogGain | None = None
    standing: tuple[Ranges, float] | None = None

    @property
    def decodes(self) -> int:
        """Running decodes at the tick, 1 at least."""
        return max(1, round(float(self.evidence.get("decodes") or 1)))

    @property
    def is_stepped_back(self) -> bool | None:
        """Whether the hold-out has found that the law loses, also while a window runs the law; `None` if not told."""
        state = self.evidence.get("hold_out")
        return None if state is None else bool(state["is_stepped_back"])

    def k(self, rows: Ranges | None) -> dict[str, int]:
        """Return K by row in `rows` (`proposed` or `publish`) at the load of the tick."""
        return {name: k_at(ranges, self.decodes) for name, ranges in (rows or {}).items()}

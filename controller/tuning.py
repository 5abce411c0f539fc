"""The constants of the controller, in one value, each with its unit and trade-off.

Operators never change them: site-dependent settings are in the policy.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tuning:
    """The constants. Times are seconds, `_steps` counts, `_ratio` 0..1.

    Attributes:
        stale_s: age from which on the newest evidence is no evidence of the present load.
        idle_s: time without a decode, up to the newest snapshot, after which a pool counts as idle; at least two
            snapshots (`for_snapshots`).
        control_window_s: length of a window of the control group. Longer ones lose less to `delivered_s`, shorter ones
            average over more traffic.
        delivered_s: time after a change of the K in force in which evidence does not count.
        window_steps: least number of steps of a valid window of the control group or of a canary.
        control_memory: number of the newest drawn windows that count; at 1 % and 4 s these are the last 11 hours of a
            pool of one engine, the last hour of a pool of eleven.
        control_least: least number of drawn windows for an interval.
        near_windows: largest number of windows on either side with which a drawn one is compared.
        fall_back_error: probability that an adaptive K without a loss falls back within the first `control_memory`
            windows. Each later test, after every fifth of that number, adds to it.
        fallen_back_ratio: share of the time that a pool which has fallen back runs the adaptive K, to detect that it
            has become better.
    """

    stale_s: float = 5.0
    idle_s: float = 2.0
    control_window_s: float = 4.0
    delivered_s: float = 1.0
    window_steps: float = 20.0
    control_memory: int = 100
    control_least: int = 5
    near_windows: int = 3
    fall_back_error: float = 0.05
    fallen_back_ratio: float = 0.05

    def for_snapshots(self, every_s: float) -> "Tuning":
        """Return the constants for snapshots `every_s` seconds apart.

        A window of the control group has room for two snapshots: its first tick comes up to `every_s` after its begin,
        and snapshots count that begin `delivered_s` later. A pool is idle after two snapshots without a decode, because
        one snapshot may have only the sample of an idle engine if a server scrapes each engine at its own time.
        """
        return replace(
            self,
            control_window_s=max(self.control_window_s, 4 * every_s),
            idle_s=max(self.idle_s, 2 * every_s),
        )

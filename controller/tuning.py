"""Every constant of the control law, in one value, with its unit and its reason.

An operator never needs these: what depends on a site is in the policy. They are here so that a replay or a
simulation can switch one idea off and show what it was worth.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Tuning:
    """The law's constants. Times are seconds, `_ratio` is 0..1, `_trials` and `_steps` are counts.

    Attributes:
        memory_trials: trials after which a position's older evidence has lost 63 % of its weight: an error of one
            percentage point, while a busy class still forgets within some seconds.
        memory_floor_s: evidence never fades faster than this, however busy the fleet.
        memory_ceiling_s: half-life by time while a class has traffic, so that rarely tried positions age too.
        detect_changes: whether a jump in acceptance may cut the memory short.
        change_shifts: jumps in a conditional acceptance to watch for, as probabilities: a small and a large one.
        change_threshold: log likelihood ratio at which a jump is believed; a false alarm then comes about
            once in `exp(threshold)` independent trials.
        dispersion: how many correlated trials weigh as one independent trial. Drafts of one request resemble one
            another, so that counts scatter more than a binomial.
        prior_trials: weight of the model's own mean in a class's estimate.
        minimum_trials: first-position trials of a model below which its acceptance is unknown.
        cost_memory_steps: steps after which a cell of the cost table follows the new measurements.
        cost_half_life_s: half-life of a cell's weight in the fit once it is no longer visited.
        cost_floor_ratio: weight that an old cell keeps, so that the shape of the cost is never forgotten.
        cost_band_steps: steps that a band of draft depths needs before the cost of that band is known.
        freeze_cost: keep the first fit for ever (an ablation).
        mix_time_s: time constant of the class mix, while the requests that run do not contradict it.
        explore_limit_s: the longest time spent with traffic on learning the cost of one band of depths.
        explore_slack_ratio: a depth whose cost is only extrapolated to the present load is tried once when its
            predicted goodput is at most this far below the best one's.
        explore_off_slack_ratio: the same for K = 0, which no probe ever shows.
        explore_again_s: seconds of traffic after which a measured depth counts as extrapolated again.
        stale_s: age of the newest evidence at which a schedule is held.
        idle_s: time without a decode after which a pool counts as idle.
        probe_loss_ratio: share of the predicted goodput that probing may cost.
        probe_off_loss_ratio: the same where K is 0 for all and only probes show what drafting would bring.
        urgent_gain_ratio: predicted gain from which a change does not wait: one that traffic would use not for the
            policy's dwell, one for other loads not for the next change that traffic uses. To hold on would cost more
            than a change too many.
        check_ticks: ticks with traffic that a change is watched for.
        check_tolerance_ratio: shortfall against the previous schedule that is put down to noise.
        back_off_s: first pause after a roll-back; doubles up to `back_off_limit_s`.
        back_off_limit_s: longest pause after roll-backs.
        guard: whether minimum gain, dwell and roll-back apply (an ablation).
    """

    memory_trials: float = 2000.0
    memory_floor_s: float = 2.0
    memory_ceiling_s: float = 120.0
    detect_changes: bool = True
    change_shifts: tuple[float, ...] = (0.1, 0.3)
    change_threshold: float = 12.0
    dispersion: float = 3.0
    prior_trials: float = 20.0
    minimum_trials: float = 50.0
    cost_memory_steps: float = 400.0
    cost_half_life_s: float = 60.0
    cost_floor_ratio: float = 0.05
    cost_band_steps: float = 30.0
    freeze_cost: bool = False
    mix_time_s: float = 2.0
    explore_limit_s: float = 4.0
    explore_slack_ratio: float = 0.12
    explore_off_slack_ratio: float = 0.2
    explore_again_s: float = 300.0
    stale_s: float = 5.0
    idle_s: float = 2.0
    probe_loss_ratio: float = 0.01
    probe_off_loss_ratio: float = 0.02
    urgent_gain_ratio: float = 0.1
    check_ticks: int = 5
    check_tolerance_ratio: float = 0.05
    back_off_s: float = 10.0
    back_off_limit_s: float = 300.0
    guard: bool = True


ABLATIONS: dict[str, dict[str, Any]] = {
    "probes": {"probe_loss_ratio": 0.0, "probe_off_loss_ratio": 0.0},
    "change-detection": {"detect_changes": False},
    "guard": {"guard": False},
    "cost-learning": {"freeze_cost": True},
}
"""Ideas of the law that a measurement may switch off, to show what each is worth."""


def without(ideas: Iterable[str]) -> Tuning:
    """Return the constants with each of `ideas` (keys of `ABLATIONS`) switched off."""
    tuning = Tuning()
    for idea in ideas:
        tuning = replace(tuning, **ABLATIONS[idea])
    return tuning

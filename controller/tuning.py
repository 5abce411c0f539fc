"""The constants of the control law, in one value: unit, what each trades, where it was measured.

Those of a numerical method alone (rounds of a search, smoothness of a fit) stand beside it. An operator never needs
these: site-dependent settings are in the policy. They are one value so that a simulation can change one
(`bench.ablations`). "Replay" is the closed-loop replay of 24,064 drafts of the demo pair.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tuning:
    """The law's constants. Times are seconds, `_trials` and `_steps` counts, `_ratio` 0..1 except `near_ratio`.

    Attributes:
        memory_trials: trials of a (band, position) after which older ones have lost 63 % of their weight. More has less
            noise, less follows a changed drafter head sooner; 2,000 in the replay.
        prior_trials: weight of the band's own mean in each of its positions; 20 in the replay.
        mix_time_s: time constant of the shares of classes and bands. More has less noise, less follows traffic sooner.
        cold_ratio: share of decodes of unprobed requests beyond which the bands of the others are left out of the mix.
            Less waits longer for a band to be worth its drafter's steps, more lets the few probed requests decide for
            all.
        gone_s: seconds of traffic after which a class and band without requests is left out of the mix at once. Less
            loses rare traffic, more charges rows with traffic that has ended.
        gone_nats: log likelihood ratio, summed over snapshots, at which the newest share of a class and band replaces
            its mean. Less follows a change of few requests sooner, more follows chance less: with 3 the share of a kind
            among 8 requests varies twice as much as with the mean alone, with 5 by half as much again. The end of 8 of
            16 requests is detected in one snapshot with either.
        answer_ratio: dependence of the number of running requests of a class and band on its K (`law.choice`): 1 if
            they come from a queue, 0 if each client sends the next request when one is done.
        cell_memory_steps: steps after which a cell of like steps follows new measurements.
        cell_saturation_steps: steps at which a cell has half of its full weight in the fit of the cost.
        cells_limit: cells in the memory of a pool; bounds time and memory of a fit.
        cell_span_s: seconds of traffic of a cell's newest part, which then joins the older one.
        slowdown_spread_ratio: standard deviation of the logarithm of the machine's slowdown factor. With
            `slowdown_time_s` the estimate follows 5 % in one second; less follows later, more takes errors of the cost
            model for a slowdown.
        slowdown_time_s: correlation time of the slowdown factor in seconds of traffic.
        shape_spread_ratio: standard deviation of the logarithmic error of the cost model.
        slowdown_parts: parts of cells, those visited last, that estimate the slowdown factor; the time grows with its
            cube.
        left_half_life_s: seconds of steps after which a snapshot has half weight in the catch-up cost of K = 0.
        pause_jump: logarithmic error beyond which a snapshot is set aside until the next one agrees.
        trial_steps: steps of a depth that make its cost known; an engine measures 20 of each before traffic.
        trial_limit_s: the longest trial of a depth on one engine, which then ends it by itself.
        trial_rest_s: time between two trials of a depth at the same load, successful or not.
        trial_slack_ratio: a depth that was measured at other loads only is tried if its predicted score is at most this
            far below the best one's.
        near_ratio: loads whose running decodes differ by at most this factor count as like.
        stale_s: age of the newest evidence at which a schedule is held.
        idle_s: time without a decode, up to the newest snapshot, after which a pool counts as idle; at least two
            snapshots (`for_snapshots`).
        urgent_gain_ratio: predicted gain that does not wait for the policy's dwell time, and the least gain at loads
            and in rows without traffic that change alone.
        even_ratio: loss of score at any n that smoothing along n may cause. More loses throughput when n is steady,
            less makes requests catch up as n varies.
        hold_out_window_s: length of a window of the control group. Longer ones lose less to `delivered_s`, shorter ones
            average over more traffic.
        delivered_s: time after a change of the K in force in which evidence does not count.
        window_steps: least steps of a valid window of the control group or of a canary.
        hold_out_memory: number of the newest windows that count; at 1 % and 4 s these are the last 11 hours.
        hold_out_least: least windows for an interval.
        hold_out_near: most windows on either side with which a drawn one is compared.
        step_back_error: probability that an adaptive K without a loss falls back within the first `hold_out_memory`
            windows. Later judgements, one each fifth of that, add to it.
        stepped_back_ratio: share of the time that a pool which has fallen back runs the adaptive K, to detect that it
            has become better.
    """

    memory_trials: float = 2000.0
    prior_trials: float = 20.0
    mix_time_s: float = 3.0
    cold_ratio: float = 0.5
    gone_s: float = 2.0
    gone_nats: float = 5.0
    answer_ratio: float = 0.5
    cell_memory_steps: float = 400.0
    cell_span_s: float = 4.0
    cell_saturation_steps: float = 20.0
    cells_limit: int = 400
    slowdown_spread_ratio: float = 0.6
    slowdown_time_s: float = 300.0
    shape_spread_ratio: float = 0.05
    slowdown_parts: int = 150
    left_half_life_s: float = 60.0
    pause_jump: float = 0.4
    trial_steps: float = 15.0
    trial_limit_s: float = 4.0
    trial_rest_s: float = 300.0
    trial_slack_ratio: float = 0.1
    near_ratio: float = 1.6
    stale_s: float = 5.0
    idle_s: float = 2.0
    urgent_gain_ratio: float = 0.1
    even_ratio: float = 0.0075
    hold_out_window_s: float = 4.0
    delivered_s: float = 1.0
    window_steps: float = 20.0
    hold_out_memory: int = 100
    hold_out_least: int = 5
    hold_out_near: int = 3
    step_back_error: float = 0.05
    stepped_back_ratio: float = 0.05

    def for_snapshots(self, every_s: float) -> "Tuning":
        """Return the constants for snapshots `every_s` seconds apart.

        A window of the control group has room for two snapshots: its first tick comes up to `every_s` after its begin,
        and snapshots count that begin `delivered_s` later. A pool is idle after two snapshots without a decode, because
        one may hold the sample of an idle engine alone if a server scrapes each engine at its own time.
        """
        return replace(
            self,
            hold_out_window_s=max(self.hold_out_window_s, 4 * every_s),
            idle_s=max(self.idle_s, 2 * every_s),
        )

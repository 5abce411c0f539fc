"""The constants of the control law, in one value: unit, what each trades, where it was measured.

Those of a numerical method alone (rounds of a search, smoothness of a fit) stand beside it. An operator never needs
these: site-dependent settings are in the policy. They are one value so that a simulation can change one
(`bench.ablations`). "Replay" is the closed-loop replay of 24,064 drafts of the demo pair.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tuning:
    """The law's constants. Times are seconds, `_trials` and `_steps` counts, `_ratio` 0..1 but for `near_ratio`.

    Attributes:
        memory_trials: trials of a (band, position) after which older ones have lost 63 % of their weight. Noise against
            following a changed drafter head; 2,000 in the replay.
        prior_trials: weight of the band's own mean in each of its positions; 20 in the replay.
        mix_time_s: time constant of the shares of classes and bands. Noise against following traffic.
        cold_ratio: share of decodes of requests without a verified draft beyond which the bands of the others are
            left out of the mix. Less waits longer for a band to be worth its drafter's steps, more lets the few that
            were found decide for all.
        gone_s: seconds of traffic after which a class and band that was not seen is left out of the mix at once. Less
            loses what is rare, more charges rows with traffic that has ended.
        gone_nats: how unlikely the shares of a class and band must be, over looks, for the newest look to replace their
            mean: the logarithm of the likelihood ratio. Less follows a change of few requests sooner, more follows
            chance less: with 3 the share of a kind among 8 requests varies twice as much as with the mean alone, with 5
            by half as much again, and 16 requests of which half end are seen in one look with either.
        answer_ratio: how far the number of running requests of a class and band answers to its K (`law.choice`): 1
            where they come from a queue, 0 where each client sends the next when one is done.
        cell_memory_steps: steps after which a cell of like steps follows new measurements.
        cell_saturation_steps: steps at which a cell has half of its full weight in the fit of the cost.
        cells_limit: cells that are remembered of a pool; bounds time and memory of a fit.
        cell_span_s: seconds of traffic that the newest steps of a cell are of, before they join those of before.
        pace_spread_ratio: how far the machine's pace varies: the standard deviation of its logarithm. With
            `pace_time_s` it follows 5 % in one second; less follows later, more takes what the form misses for it.
        pace_time_s: seconds of traffic over which it does.
        shape_spread_ratio: how far the form of the cost misses steps: the standard deviation of the logarithm.
        pace_parts: parts of cells by which the pace is found, those visited last; the time grows with its cube.
        left_half_life_s: seconds of steps after which a look counts half for what is left at K = 0 to be caught up.
        pause_jump: logarithm of a look's error beyond which it is set aside until the next one agrees.
        trial_steps: steps of a depth that make its cost known; an engine measures 20 of each before traffic.
        trial_limit_s: the longest time that one engine tries a depth; it ends the trial then by itself.
        trial_rest_s: time until a depth is tried again at the same load after it was tried, or tried in vain.
        trial_slack_ratio: a depth that was measured at other loads only is tried when its predicted score is at most
            this far below the best one's.
        near_ratio: loads whose running decodes differ by at most this factor count as like.
        stale_s: age of the newest evidence at which a schedule is held.
        idle_s: time without a decode, up to the newest look, after which a pool counts as idle; two looks at least
            (`for_looks`).
        urgent_gain_ratio: predicted gain that does not wait for the policy's dwell, and the least gain at loads and in
            rows without traffic, which change alone.
        even_ratio: score that a table may lose at any n, to change K less often along n. More loses throughput where n
            is steady, less makes requests catch up as it varies.
        hold_out_window_s: length of a window of the hold-out. Longer ones lose less to `delivered_s`, shorter ones
            average over more traffic.
        delivered_s: time after a change of whose turn it is that evidence does not count.
        window_steps: steps that a window of the hold-out or of a canary needs to count.
        hold_out_memory: windows of the hold-out that count, the newest; at 1 % and 4 s that is the last 11 hours.
        hold_out_least: windows before an interval is told.
        hold_out_near: windows on either side of a drawn one that it is compared with, at most.
        step_back_error: probability with which an adaptive K that loses nothing is taken for a loser within the first
            `hold_out_memory` windows. Later judgements, one each fifth of that, add to it.
        stepped_back_ratio: share of the time that a pool which stepped back runs the adaptive K, to find out whether it
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
    pace_spread_ratio: float = 0.6
    pace_time_s: float = 300.0
    shape_spread_ratio: float = 0.05
    pace_parts: int = 150
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

    def for_looks(self, every_s: float) -> "Tuning":
        """Return the constants for looks `every_s` seconds apart.

        A window of the hold-out has room for two of them: its first tick comes up to `every_s` after it began, and
        looks count that begin `delivered_s` later. A pool is idle after two without a decode: one may hold the sample
        of an idle engine alone, where a server scrapes each engine at its own time.
        """
        return replace(
            self,
            hold_out_window_s=max(self.hold_out_window_s, 4 * every_s),
            idle_s=max(self.idle_s, 2 * every_s),
        )

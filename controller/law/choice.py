"""The choice: for every number of running decodes n, the K of each row with the best predicted score.

A *stream* is the traffic of one class in one band. A row of the schedule serves it. The number of requests in a stream
may depend on K. If each client sends its next request when one is done, it does not (given concurrency). With a queue,
requests with a large K finish sooner, so requests at K = 0 make up more of the batch (given work). While K stays, the
engines' reports do not show which case holds, so the law takes the middle. With AL_i = AL_band(K_row) and the stream's
part w_i of the mix (`load`), which does not depend on K, the share of the running decodes in stream i is

    q_i = w_i AL_i^-beta / sum_j w_j AL_j^-beta             beta = `answer_ratio`: 0 given concurrency, 1 given work

    throughput:  G = n sum_i (weight_i q_i AL_i) / T             weighted tokens per second
    latency:  L = T sum_g weight_g p_g / AL_g                    the mean time per token of a request, to minimise

with a *group* of streams for each class, p_g its present share of the running decodes, and AL_g the mean of AL_i within
it, weighted by q_i. For throughput, classes of one weight are one group.

T is the mean time of a step of n requests, drawn independently from q. The drafter runs with probability
1 - F(0)^n and lays out, for those with K > 0, as many slots as the largest K in the step, with F(w) = sum of q with
K <= w:

    E[slots] = n sum_w [ Q - F(w)^(n-1) (Q - Q_w) ],    Q = 1 - F(0),  Q_w = 1 - F(w),  w = 0 .. K_max - 1

T averages steps with and without prefill (`Setting.prefill`), less the time of the prefill itself, which does not
depend on K. A decode at K = 0 is charged with its catch-up, in proportion to Q (`pool_cost`), but at most with the cost
of a draft for it.

Search: with the drafter's width bounded by W, linear costs and beta = 1, the rows are independent, so each is solved
alone, for every W. The best of these tables and of the one in force is then improved row by row, twice. If the engine
has CUDA graphs, the tables of a uniform K compete too, and K must not fall from one band to the next: without this
rule, as padding makes every saved token count, the search row by row may lower K for requests that draft well.

SLO: a bound on a class's mean inter-token latency applies to each of its streams, the low bands too: T / AL_i with
prefill. A table that keeps every bound beats every table that breaks one; when none keeps all, the one with the
smallest worst excess wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.step_cost import StepCost
from specpilot.policy.types import Objective

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
_EQUAL = 1e-12
_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Stream:
    """The traffic of one class in one band; `part` is its share of the mix (0..1).

    `row` and `group` are indices. `itl_slo_s` is the bound on its mean inter-token latency, `None` without one.
    """

    row: int
    band: int
    group: int
    part: float
    itl_slo_s: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Streams of one weight, with their `share` of the running decodes (0..1), for latency."""

    share: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The inputs of a choice.

    `lengths` is AL(K) [bands, K_max + 1]. `low` and `high` [rows] bound K; `bands` [rows] is the band of a row, -1 for
    all. `answer_ratio` (0..1) is beta, the dependence of a stream's number of requests on its K. `prefill` has pairs of
    (share of the steps, prefilled tokens in a step); the shares sum to 1. `context_tokens` is the mean length of a
    running request's sequence.
    """

    streams: Sequence[Stream]
    groups: Sequence[Group]
    lengths: Vector
    low: Ints
    high: Ints
    bands: Ints
    cost: StepCost
    answer_ratio: float = 0.5
    objective: Objective = Objective.THROUGHPUT
    prefill: Sequence[tuple[float, float]] = ((1.0, 0.0),)
    context_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Yield:
    """The predictions for tables, one value for each n: weighted tokens per second, seconds of a step, and the score.

    `score` orders tables: larger is better; it is negative when an SLO breaks. `step_s` does not include the time of
    the prefill itself.
    """

    throughput: Vector
    step_s: Vector
    score: Vector


class Choice:
    """Evaluates and finds tables in one `Setting`.

    A table's predictions follow from sums over its streams, group by group: of u_i = w_i AL_i^-beta, of AL_i u_i, of
    K u_i, and of u_i with K above each width (`_sums`). The sums are additive in the rows, so trying another K for one
    row replaces this row's part, at a cost independent of the number of rows.
    """

    def __init__(self, setting: Setting) -> None:
        streams, groups = setting.streams, len(setting.groups)
        lengths = setting.lengths[[item.band for item in streams]]  # [streams, K_max + 1]
        self._setting = setting
        self._k_max = setting.lengths.shape[1] - 1
        self._weights = np.array([item.weight for item in setting.groups])
        self._value = self._weights * np.array([item.share for item in setting.groups])
        self._served = sorted({item.row for item in streams})
        self._inverse = 1.0 / setting.lengths[setting.bands]  # of each row's AL(K): [rows, K_max + 1]
        self._parts = np.zeros((len(setting.bands), self._k_max + 1, groups, 3 + max(1, self._k_max)))
        self._slo_s = np.zeros((len(setting.bands), self._k_max + 1))  # the row's largest 1 / (AL(K) times bound)
        # The sums of a row, for each of its K: u_i, AL_i u_i, K u_i, then u_i if K is above width 0, 1, ...
        depths = np.arange(self._k_max + 1)
        above = depths[:, None] > np.arange(max(1, self._k_max))
        for item, length in zip(streams, lengths, strict=True):
            summed = np.column_stack([np.ones(len(depths)), length, depths, above])
            self._parts[item.row, :, item.group] += (item.part / length**setting.answer_ratio)[:, None] * summed
            if item.itl_slo_s is not None:
                np.maximum(self._slo_s[item.row], 1.0 / (length * item.itl_slo_s), out=self._slo_s[item.row])
        self._has_slo = bool(self._slo_s.any())
        for row in self._served:  # a row with several streams has the mean of their 1 / AL(K), by their parts
            of_row = [
                (item.part + _EQUAL, length) for item, length in zip(streams, lengths, strict=True) if item.row == row
            ]
            self._inverse[row] = sum(part / length for part, length in of_row) / sum(part for part, _ in of_row)
        self._prefill_s = sum(share * setting.cost.prefill_s(tokens) for share, tokens in setting.prefill)

    def evaluate(self, n: Vector, k: Ints) -> Yield:
        """Return the predictions for `k` [..., n, rows] at `n` running decodes."""
        return self._yields(n, self._sums(k), self._worst(k, self._served))

    def prepared(self, n: Vector, in_force: Ints, least_gain: float) -> Ints:
        """Return `in_force` [n, rows] with the best K for rows without traffic, as if all traffic were theirs.

        These rows serve no request, so a change costs nothing now, and their first requests need not wait for evidence.
        A K stays if another one lowers the time per token by less than `least_gain` (a ratio).
        """
        setting = self._setting
        absent = [row for row in np.flatnonzero(setting.bands >= 0).tolist() if row not in self._served]
        found = np.clip(in_force, setting.low, setting.high)
        if absent:
            times = self._times_alone(n, None)[:, absent]  # [n, absent, K]
            present = np.take_along_axis(times, found[:, absent, None], axis=2)[..., 0]
            moves = times.min(axis=2) * (1 + least_gain) < present
            found[:, absent] = np.where(moves, times.argmin(axis=2), found[:, absent])
        return found

    def best(self, n: Vector, in_force: Ints) -> Ints:
        """Return the best K [n, rows], else that in force. Rows without traffic stay.

        With CUDA graphs it is the best table found in which K does not fall from one band to the next.
        """
        low, high, served = self._setting.low, self._setting.high, self._served
        found = np.clip(in_force, low[None, :], high[None, :])
        score = self.evaluate(n, found).score
        # Start tables: for each width of the drafter every row alone; with CUDA graphs also each uniform K.
        depths = range(self._k_max + 1)
        starts = np.repeat(found[None], len(depths) * (1 if self._setting.cost.graphs is None else 2), axis=0)
        for width in depths:
            starts[width][:, served] = self._times_alone(n, width).argmin(axis=2)[:, served]
        for at, k in enumerate(depths[: len(starts) - len(depths)], start=len(depths)):
            starts[at][:, served] = np.clip(k, low, high)[served]  # a graph for a uniform K
        scores = self.evaluate(n, starts).score
        leader, top = scores.argmax(axis=0), scores.max(axis=0)
        better = top > score + _GAIN * np.abs(
            score
        )  # else the table in force stays, so that equal tables do not alternate
        found = np.where(better[:, None], starts[leader, np.arange(len(n))], found)
        score = np.where(better, top, score)
        for _ in range(2):  # in 1 of 150 random settings one round loses 10 % of the best score; two lose at most 0.3 %
            self._improve(n, found, score)
        return found if self._setting.cost.graphs is None else self._rising(n, [found, np.clip(in_force, low, high)])

    def even(self, n: Vector, k: Ints, slack: float) -> Ints:
        """Return `k` [n, rows] with the fewest changes along n that lose at most `slack` of the score anywhere.

        `slack` is a ratio. Running decodes vary from step to step, and a request that leaves K = 0 has rows to catch
        up. So a best K that changes back and forth along n for almost no gain costs more than it gains. Each range has
        the values of `k` at some n: those that allow the longest range, and of these the ones with the largest sum of
        scores. Rows without traffic stay, because no score shows their loss.
        """
        scores = self.evaluate(n, np.repeat(k[:, None], len(n), axis=1)).score  # score of one n's values at another n
        best = scores.diagonal()
        is_fine = scores >= best - slack * np.abs(best)
        found, begin = k.copy(), 0
        while begin < len(n):  # greedy: from `begin` the longest range in which one n's values are fine everywhere
            ends = np.where(is_fine[:, begin:].all(axis=1), len(n), begin + is_fine[:, begin:].argmin(axis=1))
            end = max(int(ends.max()), begin + 1)
            sums = np.where(ends == end, scores[:, begin:end].sum(axis=1), -np.inf)
            found[begin:end, self._served] = k[int(sums.argmax()), self._served]
            begin = end
        return found

    def _rising(self, n: Vector, tables: Sequence[Ints]) -> Ints:
        """Return, for each n, the best table near `tables` [n, rows] in which K does not fall from band to band.

        The rule is for rows with traffic; the others stay. Tables of a uniform K compete too. If no such table keeps
        all SLOs and the first of `tables` does, that one stays.
        """
        low, high, served = self._setting.low, self._setting.high, self._served
        rising = [np.clip(envelope, low, high) for table in tables for envelope in self._envelopes(table)]
        for k in range(self._k_max + 1):
            uniform = tables[0].copy()
            uniform[:, served] = np.clip(k, low, high)[served]
            rising.append(uniform)
        scores = self.evaluate(n, np.stack([*rising, tables[0]])).score
        best = scores[:-1].argmax(axis=0)
        keeps = (scores[-1] > 0) & (scores[:-1].max(axis=0) <= 0)
        return np.where(keeps[:, None], tables[0], np.stack(rising)[best, np.arange(len(n))])

    def _envelopes(self, k: Ints) -> tuple[Ints, Ints]:
        """Return the smallest rising table that is at least `k` [n, rows], and the largest that is at most `k`."""
        up, down, bands = k.copy(), k.copy(), self._setting.bands
        for begin, end in pairwise([*np.flatnonzero(bands <= 0).tolist(), len(bands)]):  # rows of one class
            of_class = [row for row in self._served if begin <= row < end]
            if bands[begin] == 0 and of_class:
                up[:, of_class] = np.maximum.accumulate(k[:, of_class], axis=1)
                down[:, of_class] = np.minimum.accumulate(k[:, of_class][:, ::-1], axis=1)[:, ::-1]
        return up, down

    def _improve(self, n: Vector, found: Ints, score: Vector) -> None:
        """Replace each row's K by its best, one row after the other, in `found` and `score`."""
        low, high = self._setting.low, self._setting.high
        sums = self._sums(found)
        for row in self._served:
            if low[row] == high[row]:
                continue
            parts = self._parts[row]
            others = sums - parts[found[:, row]]  # the sums without this row; each K that is tried adds its part
            worst = self._worst(found, [other for other in self._served if other != row])
            tried = slice(low[row], high[row] + 1)
            worst = np.maximum(worst, self._slo_s[row, tried][:, None])
            scores = self._yields(n, others + parts[tried][:, None], worst).score
            best, top = scores.argmax(axis=0), scores.max(axis=0)
            moved = top > score + _GAIN * np.abs(score)
            if moved.any():
                found[moved, row] = low[row] + best[moved]
                score[moved] = top[moved]
                sums = others + parts[found[:, row]]

    def _sums(self, k: Ints) -> Vector:
        """Return the sums over the rows of `k` [..., n, rows]: [..., n, groups, sums]."""
        total = np.zeros((*k.shape[:-1], *self._parts.shape[2:]))
        for row in self._served:
            total += self._parts[row][k[..., row]]
        return total

    def _worst(self, k: Ints, rows: Sequence[int]) -> Vector:
        """Return the largest 1 / (AL times the bound) over the SLOs of `rows`, 0 without one: [..., n]."""
        if not self._has_slo or not rows:
            return np.zeros(k.shape[:-1])
        found: Vector = self._slo_s[rows, k[..., rows]].max(axis=-1)
        return found

    def _yields(self, n: Vector, sums: Vector, worst: Vector) -> Yield:
        """Return the predictions for tables from their `_sums` and `_worst`."""
        setting, cost = self._setting, self._setting.cost
        # Per decode: the mean K, and 1 - F(w), the share of the decodes with K above width w.
        per_decode = sums[..., 2:].sum(axis=-2) / np.maximum(sums[..., 0].sum(axis=-1), _EQUAL)[..., None]
        above = per_decode[..., 1:]
        drafted = above[..., 0]  # Q
        # E[slots] and the probability of a draft, for n independent requests (see the module).
        alone = np.maximum(1.0 - above, 0.0) ** np.maximum(n - 1.0, 0.0)[:, None]
        slots = n * (drafted[..., None] - alone * (drafted[..., None] - above)).sum(axis=-1)
        drafts = 1.0 - np.maximum(1.0 - drafted, 0.0) ** n
        verified = n * (1.0 + per_decode[..., 0])
        # With CUDA graphs also the share of each K, for the probability of a uniform step.
        edges = np.concatenate([np.ones_like(drafted)[..., None], above, np.zeros_like(drafted)[..., None]], axis=-1)
        shares = np.maximum(edges[..., :-1] - edges[..., 1:], 0.0) if cost.graphs is not None else None
        # T over steps with and without prefill; then without the prefill itself, with the catch-up of K = 0.
        gross = sum(
            (
                part
                * cost.step_s(
                    n, verified, slots, drafts=drafts, prefill=tokens, context=n * setting.context_tokens, shares=shares
                )
                for part, tokens in setting.prefill
            ),
            start=np.zeros(1),
        )
        drafting_s = cost.drafter_s + n * (cost.drafting_per_decode_s + cost.per_slot_s)
        left_s = np.minimum(n * cost.left_s, cost.pace_ratio * drafting_s)
        seconds = np.maximum(gross - self._prefill_s, _EQUAL) + (1.0 - drafted) * drafted * left_s
        throughput = n * (sums[..., 1] @ self._weights) / np.maximum(sums[..., 0].sum(axis=-1), _EQUAL) / seconds
        score = throughput
        if setting.objective is Objective.LATENCY:
            score = self._value.sum() / (seconds * ((sums[..., 0] / np.maximum(sums[..., 1], _EQUAL)) @ self._value))
        if self._has_slo:
            excess = gross * worst  # the largest latency over its bound; a broken SLO makes the score negative
            score = np.where(excess <= 1.0 + _EQUAL, score, -excess)
        return Yield(throughput, seconds, score)

    def _times_alone(self, n: Vector, width: int | None) -> Vector:
        """Return the time per token of each row alone: [n, rows, K], infinite for a K that is not allowed.

        The drafter lays out `width` slots for each request; `None`: K slots.
        """
        setting, cost, depths = self._setting, self._setting.cost, np.arange(self._k_max + 1)
        slots = n[:, None] * (depths if width is None else np.where(depths > 0, width, 0))
        # If other rows draft, the drafter runs at any K of this row.
        drafts = (slots > 0).astype(np.float64) if width is None else np.full((len(n), 1), float(width > 0))
        step = np.zeros((len(n), len(depths)))
        for part, tokens in setting.prefill:
            step += part * cost.step_s(
                n[:, None], n[:, None] * (1 + depths), slots, drafts=drafts, prefill=tokens,
                context=n[:, None] * setting.context_tokens,
            )  # fmt: skip
        per_token = (step - self._prefill_s)[:, None, :] * self._inverse[None]  # [n, rows, K]
        low, high = setting.low[:, None], setting.high[:, None]
        allowed = (depths >= low) & (depths <= high)
        if width is not None:  # a K above the width is not possible, except one that the policy requires
            allowed &= (depths <= width) | (depths == low)
        found: Vector = np.where(allowed[None], per_token, np.inf)
        return found

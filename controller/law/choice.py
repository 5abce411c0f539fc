"""The choice: for every number of running decodes n, the K of each row that yields the most.

A *stream* is the traffic of one class in one band. It is served by a row of the schedule. The number of requests in a
stream may answer to K: where each client sends its next request when one is done it stays (given concurrency), where
requests come from a queue who is done sooner leaves, and who runs at K = 0 lingers (given work). What engines report
does not tell which it is while K stays, so the law takes the middle. With AL_i = AL_band(K_row) and the stream's
part w_i of the mix (`load`), which K does not change, the share of the running decodes in stream i is

    q_i = w_i AL_i^-beta / sum_j w_j AL_j^-beta             beta = `answer_ratio`: 0 given concurrency, 1 given work

    throughput:  G = n sum_i (weight_i q_i AL_i) / T             weighted tokens per second
    latency:  L = T sum_g weight_g p_g / AL_g                    the mean time per token of a request, to be made small

with a *group* of streams for each class, p_g its share of the running decodes now, and AL_g the mean of AL_i by q_i
within it. For throughput classes of one weight are one group.

T is the mean over steps that n requests, drawn independently from q, make up: the drafter runs with probability
1 - F(0)^n and lays out, for those with K > 0, as many slots as the largest K in the step, with F(w) = sum of q with
K <= w:

    E[slots] = n sum_w [ Q - F(w)^(n-1) (Q - Q_w) ],    Q = 1 - F(0),  Q_w = 1 - F(w),  w = 0 .. K_max - 1

Steps that also prefill are averaged in with those that do not (`Setting.prefill`), and what prefilling alone takes is
taken off T: it comes with the work, whatever K is. A decode at K = 0 is charged with what it leaves to be caught up,
in proportion to Q (`pool_cost`), at most with what drafting for it takes.

Search: with the width of the drafter bounded by W, all costs taken as linear and beta as 1, every row is solved alone,
for every W; the best of these tables and of the one in force is then improved row by row, twice. Where the engine has
CUDA graphs, the tables of one K for all compete too; and K does not fall from one band to the next. Otherwise, where
padding makes every saved token count, the search row by row may lower K for requests that draft well.

SLO: a bound on a class's mean inter-token latency is held for each of its streams, the low bands too: T / AL_i with
prefill. A table in which every bound holds beats every one in which some bound breaks; when none holds, the one with
the smallest worst excess wins.
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
    """The traffic of one class in one band: `part` is its share of the mix, 0..1.

    `row` and `group` are indices. `itl_slo_s` bounds its mean inter-token latency, `None` for none.
    """

    row: int
    band: int
    group: int
    part: float
    itl_slo_s: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Streams that count alike: their weight, and their `share` of the running decodes (0..1), for latency."""

    share: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a choice depends on.

    `lengths` is AL(K) [bands, K_max + 1]. `low` and `high` [rows] bound K; `bands` [rows] is the band that a row is
    for, -1 for any. `answer_ratio` is how far the number of requests in a stream answers to its K (0..1). `prefill` are
    (share of the steps, prefilled tokens in one), together 1. `context_tokens` is the mean length of a running
    request's sequence.
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
    """What tables are predicted to do, one value for each n: weighted tokens per second, seconds, and the score.

    `score` orders tables: larger is better; it is negative when an SLO breaks. `step_s` is without what prefilling
    alone takes.
    """

    throughput: Vector
    step_s: Vector
    score: Vector


class Choice:
    """Evaluates and finds tables in one `Setting`.

    All that a table comes to follows from sums over its streams, group by group: of w_i AL_i^-beta, of AL_i times that,
    of K times that, and of that where K is above each width (`_sums`). A row adds its part to them, so that to try
    another K for one row takes the row's part out and puts another in, however many rows there are.
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
        depths = np.arange(self._k_max + 1)
        above = depths[:, None] > np.arange(max(1, self._k_max))
        for item, length in zip(streams, lengths, strict=True):
            summed = np.column_stack([np.ones(len(depths)), length, depths, above])
            self._parts[item.row, :, item.group] += (item.part / length**setting.answer_ratio)[:, None] * summed
            if item.itl_slo_s is not None:
                np.maximum(self._slo_s[item.row], 1.0 / (length * item.itl_slo_s), out=self._slo_s[item.row])
        self._has_slo = bool(self._slo_s.any())
        for row in self._served:
            own = [
                (item.part + _EQUAL, length) for item, length in zip(streams, lengths, strict=True) if item.row == row
            ]
            self._inverse[row] = sum(part / length for part, length in own) / sum(part for part, _ in own)
        self._prefill_s = sum(share * setting.cost.prefill_s(tokens) for share, tokens in setting.prefill)

    def evaluate(self, n: Vector, k: Ints) -> Yield:
        """Return what `k` [..., n, rows] yields at `n` running decodes."""
        return self._yields(n, self._sums(k), self._worst(k, self._served))

    def prepared(self, n: Vector, in_force: Ints, least_gain: float) -> Ints:
        """Return `in_force` [n, rows] with the K of rows without traffic that is best if all traffic becomes theirs.

        Nobody is served by them, so it costs nothing now, and whoever comes need not wait for evidence. A K stays where
        another takes less than `least_gain` (a ratio) off the time per token.
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
        """Return the best K [n, rows]; where nothing is better, that in force. Rows without traffic stay as they are.

        With CUDA graphs that is the best table found in which no band has less than a lower one.
        """
        low, high, served = self._setting.low, self._setting.high, self._served
        found = np.clip(in_force, low[None, :], high[None, :])
        score = self.evaluate(n, found).score
        depths = range(self._k_max + 1)
        starts = np.repeat(found[None], len(depths) * (1 if self._setting.cost.graphs is None else 2), axis=0)
        for width in depths:
            starts[width][:, served] = self._times_alone(n, width).argmin(axis=2)[:, served]
        for at, k in enumerate(depths[: len(starts) - len(depths)], start=len(depths)):
            starts[at][:, served] = np.clip(k, low, high)[served]  # a graph of its own wants the same K for all
        scores = self.evaluate(n, starts).score
        widest, top = scores.argmax(axis=0), scores.max(axis=0)
        better = top > score + _GAIN * np.abs(score)
        found = np.where(better[:, None], starts[widest, np.arange(len(n))], found)
        score = np.where(better, top, score)
        for _ in range(2):  # in 1 of 150 random settings one round loses 10 % of the best score, two 0.3 % at most
            self._improve(n, found, score)
        return found if self._setting.cost.graphs is None else self._rising(n, [found, np.clip(in_force, low, high)])

    def even(self, n: Vector, k: Ints, slack: float) -> Ints:
        """Return `k` [n, rows] with as few changes along n as cost at most `slack` of the score (a ratio) anywhere.

        Running decodes vary from step to step, and who goes from K = 0 to another has a row to catch up: where the
        best K changes to and fro along n for next to nothing, that costs more than it gains. Each range takes the
        values that `k` has at some n; of those that reach as far, the ones that score most in the sum. Rows without
        traffic stay as they are: no score tells what they lose.
        """
        scores = self.evaluate(n, np.repeat(k[:, None], len(n), axis=1)).score  # of the values at one n, at another
        own = scores.diagonal()
        is_fine = scores >= own - slack * np.abs(own)
        found, begin = k.copy(), 0
        while begin < len(n):
            ends = np.where(is_fine[:, begin:].all(axis=1), len(n), begin + is_fine[:, begin:].argmin(axis=1))
            end = max(int(ends.max()), begin + 1)
            sums = np.where(ends == end, scores[:, begin:end].sum(axis=1), -np.inf)
            found[begin:end, self._served] = k[int(sums.argmax()), self._served]
            begin = end
        return found

    def _rising(self, n: Vector, tables: Sequence[Ints]) -> Ints:
        """Return, for each n, the best table near `tables` [n, rows] in which no band has less than a lower one.

        That is over the rows with traffic; the others stay. They compete with one K for all rows. Where no such table
        keeps all SLOs and the first of `tables` does, that one stays.
        """
        low, high, served = self._setting.low, self._setting.high, self._served
        rising = [np.clip(near, low, high) for table in tables for near in self._envelopes(table)]
        for k in range(self._k_max + 1):
            uniform = tables[0].copy()
            uniform[:, served] = np.clip(k, low, high)[served]
            rising.append(uniform)
        scores = self.evaluate(n, np.stack([*rising, tables[0]])).score
        best = scores[:-1].argmax(axis=0)
        keeps = (scores[-1] > 0) & (scores[:-1].max(axis=0) <= 0)
        return np.where(keeps[:, None], tables[0], np.stack(rising)[best, np.arange(len(n))])

    def _envelopes(self, k: Ints) -> tuple[Ints, Ints]:
        """Return the lowest rising table that is nowhere below `k` [n, rows], and the highest that is nowhere above."""
        up, down, bands = k.copy(), k.copy(), self._setting.bands
        for begin, end in pairwise([*np.flatnonzero(bands <= 0).tolist(), len(bands)]):  # rows of one class
            own = [row for row in self._served if begin <= row < end]
            if bands[begin] == 0 and own:
                up[:, own] = np.maximum.accumulate(k[:, own], axis=1)
                down[:, own] = np.minimum.accumulate(k[:, own][:, ::-1], axis=1)[:, ::-1]
        return up, down

    def _improve(self, n: Vector, found: Ints, score: Vector) -> None:
        """Give each row in turn its best K, the others given, in `found` and `score`."""
        low, high = self._setting.low, self._setting.high
        sums = self._sums(found)
        for row in self._served:
            if low[row] == high[row]:
                continue
            parts = self._parts[row]
            others = sums - parts[found[:, row]]
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
        """Return what the rows of `k` [..., n, rows] add up to: [..., n, groups, sums]."""
        total = np.zeros((*k.shape[:-1], *self._parts.shape[2:]))
        for row in self._served:
            total += self._parts[row][k[..., row]]
        return total

    def _worst(self, k: Ints, rows: Sequence[int]) -> Vector:
        """Return the largest 1 / (AL times the bound) of any SLO of `rows`, 0 without one: [..., n]."""
        if not self._has_slo or not rows:
            return np.zeros(k.shape[:-1])
        found: Vector = self._slo_s[rows, k[..., rows]].max(axis=-1)
        return found

    def _yields(self, n: Vector, sums: Vector, worst: Vector) -> Yield:
        """Return what tables yield of which `_sums` and `_worst` are known."""
        setting, cost = self._setting, self._setting.cost
        per_decode = sums[..., 2:].sum(axis=-2) / np.maximum(sums[..., 0].sum(axis=-1), _EQUAL)[..., None]
        above = per_decode[..., 1:]
        drafted = above[..., 0]
        alone = np.maximum(1.0 - above, 0.0) ** np.maximum(n - 1.0, 0.0)[:, None]
        slots = n * (drafted[..., None] - alone * (drafted[..., None] - above)).sum(axis=-1)
        drafts = 1.0 - np.maximum(1.0 - drafted, 0.0) ** n
        verified = n * (1.0 + per_decode[..., 0])
        edges = np.concatenate([np.ones_like(drafted)[..., None], above, np.zeros_like(drafted)[..., None]], axis=-1)
        shares = np.maximum(edges[..., :-1] - edges[..., 1:], 0.0) if cost.graphs is not None else None
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
            excess = gross * worst
            score = np.where(excess <= 1.0 + _EQUAL, score, -excess)
        return Yield(throughput, seconds, score)

    def _times_alone(self, n: Vector, width: int | None) -> Vector:
        """Return the time per token of each row by itself: [n, rows, K], infinite where K is not allowed.

        The drafter lays out `width` slots for each request; `None`: K of them.
        """
        setting, cost, depths = self._setting, self._setting.cost, np.arange(self._k_max + 1)
        slots = n[:, None] * (depths if width is None else np.where(depths > 0, width, 0))
        # Where others draft, the drafter runs whatever K a row has.
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
        if width is not None:
            allowed &= (depths <= width) | (depths == low)
        found: Vector = np.where(allowed[None], per_token, np.inf)
        return found

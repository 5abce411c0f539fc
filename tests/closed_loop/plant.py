"""An engine pool in virtual time: it applies a schedule and counts what a real one counts.

Truth: conditional acceptances by class and a step time function. Requests come and go, each after as many tokens. What
they leave at K = 0 is caught up as the adapter does it, at its price: when K rises, when the rows are full, and at a
probe, for those who left the fewest. A tick of virtual time is simulated in bulk: so many steps as fit, drafts cut at
K, accepted lengths drawn one by one from the truth, step times with noise. Deterministic for a given seed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from controller.observation import Observation, Series
from controller.rows import k_at
from policy import engine_metrics as names
from policy.types import DEFAULT_CLASS, Schedule

K_MAX = 7
MODEL, POOL = "demo", "cpu"
CODE = (0.88, 0.76, 0.76, 0.75, 0.75, 0.74, 0.73)
CHAT = (0.58, 0.50, 0.45, 0.42, 0.40, 0.40, 0.40)
JSON = (0.95, 0.92, 0.92, 0.91, 0.90, 0.90, 0.90)
StepTime = Callable[[float, float, int], float]
ROW_S = 40e-3 / 1536  # to catch up a row that K = 0 left: docs/decisions/0004
READ_S = 1.5e-3  # and for every pass over rows
ROW_LIMIT = 8192
ROWS_PER_STEP = 1024
PROBE_ROWS = 4
REPLY_TOKENS = 200.0
Vector = NDArray[np.float64]


def cpu_step_s(n: float, m: float, width: int) -> float:
    """The demo pair on two CPU cores: verification costs from the first token on."""
    drafter = (0.6 + 0.25 * n + 0.03 * n * width) if width else 0.0
    return (2.2 + 0.06 * n + 0.1 * m + drafter) / 1000


def gpu_step_s(n: float, m: float, width: int) -> float:
    """A GPU: verification is nearly free until the batch fills it, then linear; the drafter is a small model."""
    drafter = (0.9 + 0.012 * n * width) if width else 0.0
    return (9.0 + 0.02 * n + 0.004 * m + 0.06 * max(0.0, m - 96) + drafter) / 1000


def concave_step_s(n: float, m: float, width: int) -> float:
    """A processor that becomes more efficient with more rows."""
    drafter = (0.8 + 0.2 * n + 0.02 * n * width) if width else 0.0
    return (2.0 + 0.3 * m**0.8 + drafter) / 1000


@dataclass(frozen=True)
class Phase:
    """Traffic for a while: running decodes by class, acceptance by class where it differs from before."""

    seconds: int
    load: Mapping[str, int]
    acceptance: Mapping[str, Sequence[float]] = field(default_factory=dict)
    slowdown: float = 1.0


@dataclass
class Engine:
    """One engine of the plant; `values` are its cumulative counters.

    `claims` are acceptances, by position, that the counters tell whatever the truth is.
    """

    engine_id: str
    rng: np.random.Generator
    step_s: StepTime = cpu_step_s
    noise: float = 0.03
    max_num_seqs: int = 64
    static_k: int = 3
    started_at: float = 0.0
    frozen: Observation | None = None
    is_lying: bool = False
    reply_tokens: float = REPLY_TOKENS
    left: Vector = field(default_factory=lambda: np.zeros(0))  # by each running request, for the drafter to catch up
    to_go: Vector = field(default_factory=lambda: np.zeros(0))  # tokens that each has yet to say
    claims: Mapping[int, float] = field(default_factory=dict)
    values: dict[Series, float] = field(default_factory=lambda: defaultdict(float))

    def restart(self, at: float) -> None:
        self.values = defaultdict(float)
        self.started_at = at
        self.left = self.to_go = np.zeros(0)

    def run(
        self,
        seconds: float,
        load: Mapping[str, int],
        truth: Mapping[str, Sequence[float]],
        schedule: Schedule | None,
        slowdown: float,
    ) -> None:
        running = {name: count for name, count in load.items() if count > 0}
        n = sum(running.values())
        for name in {*load, *truth}:
            self.values[Series(names.RUNNING_DECODES, (name,))] = float(running.get(name, 0))
        if not n:
            return
        k = {name: self.k_of(schedule, name, n) for name in running}
        probing = schedule.probe_ratio if schedule and min(k.values()) < K_MAX else 0.0
        # A share of the steps, not of the time: a probe step is the longer one.
        plain = (1 - probing) * self._mean_s(running, k)
        deep = probing * self._mean_s(running, dict.fromkeys(running, K_MAX))
        self._admit(n)
        if not any(k.values()):
            deep = probing * (self.step_s(n, n, K_MAX) + self.step_s(n, n * (1 + K_MAX), 0))
            probes = int(self.rng.poisson(seconds * probing / (plain + deep)))
            seconds -= self._probe_undrafted(probes, running, truth) * slowdown
            self._steps(max(0.0, seconds), running, k, truth, slowdown)
            while self.left.sum() > ROW_LIMIT or self.left.max() >= ROWS_PER_STEP:
                self._catch_up(self._most_left(), 0, running, truth, slowdown)
            return
        if self.left.any():
            seconds = max(0.0, seconds - self._catch_up(self.left > 0, max(k.values()), running, truth, slowdown))
        self._steps(seconds * plain / (plain + deep), running, k, truth, slowdown)
        if probing:
            deep_s = seconds * deep / (plain + deep)
            self._steps(deep_s, running, dict.fromkeys(running, K_MAX), truth, slowdown)

    def _probe_undrafted(self, steps: int, running: Mapping[str, int], truth: Mapping[str, Sequence[float]]) -> float:
        """Probe at K = 0: those with little to catch up are drafted for, in a step; they are verified in the next.

        Returns the seconds that these steps took.
        """
        n, seconds = sum(running.values()), 0.0
        for _ in range(steps):
            order = np.argsort(self.left)
            chosen = order[: max(1, int((np.cumsum(self.left[order]) <= PROBE_ROWS * n * (1 + K_MAX)).sum()))]
            rows, verified = float(self.left[chosen].sum()), n + len(chosen) * K_MAX
            self.left[chosen] = 0
            seconds += self._count_catch_up(K_MAX, 1, n, n, rows)
            seconds += self._count_catch_up(0, 1, n, verified, len(chosen) * K_MAX)
            self._go_on(2)
            for name, count in running.items():
                probed = int(self.rng.binomial(count, len(chosen) / n))
                self._drafts(name, 2 * count - probed, 0, truth[name])
                self._drafts(name, probed, K_MAX, truth[name])
        return seconds

    def _mean_s(self, running: Mapping[str, int], k: Mapping[str, int]) -> float:
        verified = sum(count * (1 + k[name]) for name, count in running.items())
        return self.step_s(sum(running.values()), verified, max(k.values()))

    def k_of(self, schedule: Schedule | None, name: str, n: int) -> int:
        if schedule is None:
            return self.static_k
        return k_at(schedule.classes.get(name, schedule.classes[DEFAULT_CLASS]), n)

    def _steps(
        self,
        seconds: float,
        running: Mapping[str, int],
        k: Mapping[str, int],
        truth: Mapping[str, Sequence[float]],
        slowdown: float,
    ) -> int:
        n = sum(running.values())
        verified = sum(count * (1 + k[name]) for name, count in running.items())
        width = max(k.values())
        mean_s = self.step_s(n, verified, width) * slowdown
        left_s = left_row_s(self.reply_tokens) * (0.0 if width else n * slowdown)
        steps = int(self.rng.poisson(seconds / (mean_s + left_s)))
        if not steps:
            return 0
        self._go_on(steps)
        if width:
            self.left[:] = 0
        times = mean_s * np.exp(self.rng.normal(0, self.noise) + self.rng.normal(0, 3 * self.noise, steps))
        cell = (str(rounded(n)), str(rounded(verified)), str(width))
        for metric, value in (
            (names.STEPS, steps), (names.STEP_SECONDS, float(times.sum())),
            (names.STEP_DECODES, n * steps), (names.STEP_VERIFIED, verified * steps),
        ):  # fmt: skip
            self.values[Series(metric, cell)] += value
        for name, count in running.items():
            self._drafts(name, count * steps, k[name], truth[name])
        return steps

    def _admit(self, n: int) -> None:
        """Let requests begin or end until `n` run."""
        new = max(0, n - len(self.left))
        self.left = np.append(self.left[:n], np.zeros(new))
        self.to_go = np.append(self.to_go[:n], self.rng.uniform(0, 1, new) * self.reply_tokens)

    def _go_on(self, steps: int) -> None:
        """Let each request say a token a step without the drafter; where one ends, another begins."""
        self.left += steps
        if math.isfinite(self.reply_tokens):
            self.to_go -= steps
            ended = self.to_go <= 0
            self.left[ended] = -self.to_go[ended] % self.reply_tokens
            self.to_go[ended] = self.reply_tokens - self.left[ended]

    def _most_left(self) -> NDArray[np.bool_]:
        """Which requests catch up when the rows are full: those that left most, as many as fit into a step."""
        order = np.argsort(-self.left)
        chosen = np.zeros(len(order), dtype=bool)
        chosen[order[: max(1, int((np.cumsum(self.left[order]) <= ROWS_PER_STEP).sum()))]] = True
        return chosen

    def _catch_up(
        self,
        who: NDArray[np.bool_],
        width: int,
        running: Mapping[str, int],
        truth: Mapping[str, Sequence[float]],
        slowdown: float,
    ) -> float:
        """Let the drafter see what some requests left, in steps of `width`; return their seconds."""
        n, rows = sum(running.values()), float(self.left[who].sum())
        steps = math.ceil(rows / ROWS_PER_STEP)
        seconds = self._count_catch_up(width, steps, n, n, rows) * slowdown
        self.left[who] = 0
        for name, count in running.items():
            self._drafts(name, count * steps, 0, truth[name])
        return seconds

    def _count_catch_up(self, width: int, steps: int, decodes: int, verified: int, rows: float) -> float:
        seconds = steps * (self.step_s(decodes, verified, width) + READ_S) + rows * ROW_S
        seconds *= float(np.exp(self.rng.normal(0, self.noise)))
        cell = (str(1 << (decodes.bit_length() - 1)), str(width))
        for metric, value in (
            (names.CATCH_UP_STEPS, steps), (names.CATCH_UP_STEP_SECONDS, seconds), (names.CATCH_UP_STEP_READ, rows),
            (names.CATCH_UP_STEP_DECODES, decodes * steps), (names.CATCH_UP_STEP_VERIFIED, verified * steps),
        ):  # fmt: skip
            self.values[Series(metric, cell)] += value
        return seconds

    def _drafts(self, name: str, drafts: int, k: int, hazards: Sequence[float]) -> None:
        self.values[Series(names.DRAFTS, (name, str(k)))] += drafts
        alive = claimed = tokens = drafts
        for position in range(1, k + 1):
            accepted = int(self.rng.binomial(alive, hazards[position - 1]))
            told = int(self.rng.binomial(claimed, self.claims[position])) if position in self.claims else accepted
            told = min(told, claimed)
            self.values[Series(names.TRIALS, (name, str(position)))] += claimed
            self.values[Series(names.ACCEPTS, (name, str(position)))] += told
            alive, claimed = accepted, told
            tokens += accepted
        self.values[Series(names.DECODE_TOKENS, (name,))] += tokens

    def observe(self, at: float) -> Observation:
        seen = Observation(self.engine_id, MODEL, POOL, at, self.started_at, dict(self.values))
        if self.is_lying:
            self.frozen = self.frozen or seen
            return replace(self.frozen, at=at)
        self.frozen = None
        return seen


def rounded(count: int) -> int:
    if count <= 8:
        return count
    octave = 1 << (count.bit_length() - 1)
    return octave + (count - octave) * 4 // octave * octave // 4


def survival_length(hazards: Sequence[float], k: int) -> float:
    return 1.0 + float(np.cumprod(hazards[:k]).sum())


def left_row_s(reply_tokens: float) -> float:
    """Seconds that a token decoded at K = 0 leaves: all rows of requests that do not end are caught up some time."""
    return ROW_S if math.isinf(reply_tokens) else 0.0


def true_goodput(
    load: Mapping[str, int],
    truth: Mapping[str, Sequence[float]],
    k: Mapping[str, int],
    step_s: StepTime,
    reply_tokens: float = REPLY_TOKENS,
) -> float:
    """Expected tokens per second of one engine at fixed K by class."""
    n = sum(load.values())
    running = {name: count for name, count in load.items() if count}
    verified = sum(count * (1 + k[name]) for name, count in running.items())
    tokens = sum(count * survival_length(truth[name], k[name]) for name, count in running.items())
    width = max(k[name] for name in running)
    return tokens / (step_s(n, verified, width) + (0.0 if width else n * left_row_s(reply_tokens)))


def oracle(
    load: Mapping[str, int],
    truth: Mapping[str, Sequence[float]],
    step_s: StepTime,
    reply_tokens: float = REPLY_TOKENS,
) -> tuple[float, dict[str, int]]:
    """The best goodput of any fixed K by class, and that K."""
    running = [name for name, count in load.items() if count]
    best = max(
        product(range(K_MAX + 1), repeat=len(running)),
        key=lambda ks: true_goodput(load, truth, dict(zip(running, ks, strict=True)), step_s, reply_tokens),
    )
    k = dict(zip(running, best, strict=True))
    return true_goodput(load, truth, k, step_s, reply_tokens), k

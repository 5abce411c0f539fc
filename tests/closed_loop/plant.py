"""An engine pool in virtual time: it applies a schedule and counts what a real one counts.

Truth: conditional acceptances by class and a step time function. A tick of virtual time is simulated in bulk: so many
steps as fit, drafts cut at K, accepted lengths drawn one by one from the truth, step times with noise. Deterministic
for a given seed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from controller.observation import Observation, Series
from controller.rows import k_at
from engine_adapter.plan import CREDIT_LIMIT, DARK_AFTER_STEPS
from policy import engine_metrics as names
from policy.types import DEFAULT_CLASS, Schedule

K_MAX = 7
MODEL, POOL = "demo", "cpu"
CODE = (0.88, 0.76, 0.76, 0.75, 0.75, 0.74, 0.73)
CHAT = (0.58, 0.50, 0.45, 0.42, 0.40, 0.40, 0.40)
JSON = (0.95, 0.92, 0.92, 0.91, 0.90, 0.90, 0.90)
StepTime = Callable[[float, float, int], float]
_PARTS = 10


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


@dataclass(frozen=True)
class _Step:
    """A kind of step: `running` requests by class, the `whole` ones among them that draft, their K, drafter width."""

    running: Mapping[str, int]
    whole: Mapping[str, int]
    k: Mapping[str, int]
    width: int

    @property
    def n(self) -> int:
        return sum(self.running.values())

    @property
    def verified(self) -> int:
        return self.n + sum(count * self.k[name] for name, count in self.whole.items())

    def seconds(self, step_s: StepTime) -> float:
        return step_s(self.n, self.verified, self.width)

    def tokens(self, name: str, hazards: Sequence[float]) -> float:
        whole = self.whole.get(name, 0)
        return whole * survival_length(hazards, self.k[name]) + self.running[name] - whole


@dataclass
class Engine:
    """One engine of the plant; `values` are its cumulative counters.

    Requests have `request_tokens` tokens on average. As in the adapter, one that decoded while the drafter was off has
    a hole and stays at K = 0 until it ends. `claims` are acceptances, by position, that the counters tell whatever the
    truth is.
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
    request_tokens: float = 20.0
    claims: Mapping[int, float] = field(default_factory=dict)
    values: dict[Series, float] = field(default_factory=lambda: defaultdict(float))
    holed: dict[str, int] = field(default_factory=dict)
    idle_steps: float = 0.0

    def restart(self, at: float) -> None:
        self.values = defaultdict(float)
        self.started_at = at
        self.holed = {}

    def run(
        self,
        seconds: float,
        load: Mapping[str, int],
        truth: Mapping[str, Sequence[float]],
        schedule: Schedule | None,
        slowdown: float,
    ) -> float:
        """Run for some time; return the expected tokens per second, holes and all, but for probes."""
        running = {name: count for name, count in load.items() if count > 0}
        n = sum(running.values())
        self.holed = {name: min(self.holed.get(name, 0), count) for name, count in running.items()}
        goodput = 0.0
        grown = n - sum(self.values[Series(names.RUNNING_DECODES, (name,))] for name in {*load, *truth})
        self.values[Series(names.PREFILL_STEPS, ())] += max(0.0, grown)
        if n:
            k = {name: self.k_of(schedule, name, n) for name in running}
            probing = schedule.probe_ratio if schedule and min(k.values()) < K_MAX else 0.0
            parts = 1 if max(k.values()) and not any(self.holed.values()) else _PARTS
            for _ in range(parts):
                goodput += self._part(seconds / parts, running, k, truth, probing, slowdown) / parts
        for name in {*load, *truth}:
            self.values[Series(names.RUNNING_DECODES, (name,))] = float(running.get(name, 0))
        self.values[Series(names.HOLED_REQUESTS, ())] = float(sum(self.holed.values()))
        return goodput

    def _part(
        self,
        seconds: float,
        running: Mapping[str, int],
        wanted: Mapping[str, int],
        truth: Mapping[str, Sequence[float]],
        probing: float,
        slowdown: float,
    ) -> float:
        """Run for a while in which holes come and go little."""
        n = sum(running.values())
        whole = {name: count - self.holed[name] for name, count in running.items()}
        deepest = max((wanted[name] for name, count in whole.items() if count), default=0)
        is_dark = not deepest and (self.idle_steps > DARK_AFTER_STEPS or not any(whole.values()))
        plain = _Step(running, whole, wanted, 0 if is_dark else max(1, deepest))
        mean_s = plain.seconds(self.step_s) * slowdown
        self.idle_steps = 0.0 if max(wanted.values()) else self.idle_steps + seconds / mean_s
        tokens = {name: plain.tokens(name, truth[name]) for name in running}
        deep = dict.fromkeys(running, K_MAX)
        if is_dark:
            # The saved credit is spent on the first steps of each new request, which is whole until then.
            new = int(self.rng.poisson(seconds / mean_s * sum(tokens.values()) / self.request_tokens))
            name = str(self.rng.choice(list(running), p=[count / n for count in running.values()]))
            probe = _Step(running, {name: 1}, deep, K_MAX)
            probes = min(probing * seconds / mean_s, CREDIT_LIMIT * new)
        else:
            probe = _Step(running, whole, deep, K_MAX)
            # A share of the steps, not of the time: a probe step is the longer one.
            probes = probing * seconds / (mean_s + probing * probe.seconds(self.step_s) * slowdown)
        rest = seconds - probes * probe.seconds(self.step_s) * slowdown
        self._steps(int(self.rng.poisson(max(0.0, rest) / mean_s)), plain, truth, slowdown)
        self._steps(int(self.rng.poisson(probes)), probe, truth, slowdown)
        for name, count in running.items():
            ended = self.rng.binomial(self.holed[name], -np.expm1(-seconds / mean_s / self.request_tokens))
            others = (tokens[name] - self.holed[name]) * seconds / mean_s / self.request_tokens
            self.values[Series(names.PREFILL_STEPS, ())] += ended + int(self.rng.poisson(others))
            self.holed[name] = self.holed[name] - int(ended) if max(wanted.values()) or not is_dark else count
        return sum(tokens.values()) / mean_s

    def k_of(self, schedule: Schedule | None, name: str, n: int) -> int:
        if schedule is None:
            return self.static_k
        return k_at(schedule.classes.get(name, schedule.classes[DEFAULT_CLASS]), n)

    def _steps(self, steps: int, step: "_Step", truth: Mapping[str, Sequence[float]], slowdown: float) -> None:
        if not steps:
            return
        mean_s = step.seconds(self.step_s) * slowdown
        times = mean_s * np.exp(self.rng.normal(0, self.noise) + self.rng.normal(0, 3 * self.noise, steps))
        cell = (str(rounded(step.n)), str(rounded(step.verified)), str(step.width))
        for metric, value in (
            (names.STEPS, steps), (names.STEP_SECONDS, float(times.sum())),
            (names.STEP_DECODES, step.n * steps), (names.STEP_VERIFIED, step.verified * steps),
        ):  # fmt: skip
            self.values[Series(metric, cell)] += value
        for name, count in step.running.items():
            whole = step.whole.get(name, 0)
            if whole:
                self._drafts(name, whole * steps, step.k[name], truth[name])
            if whole < count:
                self._drafts(name, (count - whole) * steps, 0, truth[name])

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


def true_goodput(
    load: Mapping[str, int], truth: Mapping[str, Sequence[float]], k: Mapping[str, int], step_s: StepTime
) -> float:
    """Expected tokens per second of one engine at fixed K by class."""
    n = sum(load.values())
    running = {name: count for name, count in load.items() if count}
    verified = sum(count * (1 + k[name]) for name, count in running.items())
    tokens = sum(count * survival_length(truth[name], k[name]) for name, count in running.items())
    return tokens / step_s(n, verified, max(k[name] for name in running))


def oracle(
    load: Mapping[str, int], truth: Mapping[str, Sequence[float]], step_s: StepTime
) -> tuple[float, dict[str, int]]:
    """The best goodput of any fixed K by class, and that K."""
    running = [name for name, count in load.items() if count]
    best = max(
        product(range(K_MAX + 1), repeat=len(running)),
        key=lambda ks: true_goodput(load, truth, dict(zip(running, ks, strict=True)), step_s),
    )
    k = dict(zip(running, best, strict=True))
    return true_goodput(load, truth, k, step_s), k

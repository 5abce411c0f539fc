"""An engine in virtual time: it applies a schedule by band as the adapter does, and counts what a real one counts.

Every request is a string of tokens that a draft would hit or not: a Bernoulli process with an acceptance of its own
(`traffic.ACCEPTANCE`), which stays the same unless the reply turns into another kind half-way.

The engine follows each request's own acceptance by a moving estimate, finds its band and its K, lays out slots for
those with K > 0 only, leaves rows for those at K = 0 and catches up when they draft again, and probes single requests.
Each step is simulated, with its time by a true function of what is in it and some noise. Deterministic for a given
seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.bench.simulation.counters import K_MAX, Counters, Ints, Step, Vector
from specpilot.bench.simulation.step_times import CatchUpTime, StepTime, cpu_catch_up_s, cpu_step_s
from specpilot.bench.simulation.traffic import ACCEPTANCE, Source
from specpilot.controller.estimation.observation import Observation, Series
from specpilot.controller.law.k_table import k_at
from specpilot.policy.bands import BAND_EDGES, BANDS, row_of, row_parts
from specpilot.policy.types import DEFAULT_CLASS, KRange, Schedule

MODEL, POOL = "demo", "cpu"
REPLY_TOKENS = 150.0
ROW_LIMIT, ROWS_PER_STEP = 8192, 1024
PREFILL_CHUNK = 512
KEPT, PRIOR_DRAFTS, FIRST_DRAFTS = 0.9, 3.0, 5
FIRST_ACCEPTANCE = 0.6
PRIOR_KEPT = 0.97
PROBE_AFTER, PROBES_AT_ONCE = 16, 8

_FIELDS = ("source", "label", "p", "p_later", "a", "n", "said", "length", "prompt", "left", "idle", "depth", "drafts")


@dataclass
class Engine:
    """One engine, delivering `tokens`. A step takes `step_s`, times noise, and what catching up adds.

    `by_source` has, for each source that runs now, the decodes of its requests so far, and their K summed: what no
    counter tells, as engines know no sources.

    To be wrong on purpose: `claims` are acceptances, by position, that its counters tell whatever the truth is;
    while `is_lying` they stand still.
    """

    engine_id: str
    rng: np.random.Generator
    step_s: StepTime = cpu_step_s
    catch_up_s: CatchUpTime = cpu_catch_up_s
    noise: float = 0.03
    static_k: int = 3
    k_max: int = K_MAX
    started_at: float = 0.0
    is_lying: bool = False
    reply_tokens: float = REPLY_TOKENS
    claims: Mapping[int, float] = field(default_factory=dict)
    tokens: float = 0.0
    deepest_probe: int = 0
    frozen: Observation | None = None
    counters: Counters = field(init=False)
    by_source: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.restart(self.started_at)

    def restart(self, at: float) -> None:
        """Begin anew: no request, no count."""
        self.started_at = at
        self.counters = Counters()
        self.by_source = np.zeros((0, 2))
        self._state = dict.fromkeys(_FIELDS, np.zeros(0))
        self._prior: dict[str, list[float]] = {}
        self._sources: list[Source] = []
        self._to_prefill = 0.0
        self._probe_room = 0.0

    def run(
        self,
        seconds: float,
        sources: Sequence[Source],
        schedule: Schedule | None,
        slowdown: float = 1.0,
        queue: int | None = None,
    ) -> float:
        """Run for some seconds; return the tokens that it delivered."""
        before = self.tokens
        rows = schedule
        if schedule and schedule.trial and schedule.trial.engine_id == self.engine_id:
            rows = replace(schedule, classes=schedule.trial.classes, probe_ratio=0.0, trial=None)
        self._settle(list(sources), queue)
        pace = math.exp(self.rng.normal(0, self.noise))
        left_s = seconds
        while left_s > 0 and len(self._state["p"]):
            left_s -= self._step(rows, slowdown * pace)
            self._replace(queue)
        running = {source.label: 0 for source in sources} | dict.fromkeys(self.counters.running, 0)
        for label, count in zip(*np.unique(self._state["label"].astype(int), return_counts=True), strict=True):
            running[self._labels[label]] = int(count)
        self.counters.running = running
        return self.tokens - before

    def _k_of(self, schedule: Schedule | None, n: int) -> tuple[Ints, NDArray[np.bool_]]:
        """K [labels, bands] at `n` running decodes, and whether the row is for a band."""
        k = np.zeros((len(self._labels), BANDS), dtype=np.int64)
        banded = np.zeros(k.shape, dtype=bool)
        if schedule is None:
            k[:] = self.static_k
            return k, banded
        at = {name: (k_at(ranges, n), row_parts(name)[1] is not None) for name, ranges in schedule.classes.items()}
        for index, label in enumerate(self._labels):
            for band in range(BANDS):
                k[index, band], banded[index, band] = row_of(at, label, band)
        return np.minimum(k, self.k_max), banded

    def _settle(self, sources: list[Source], queue: int | None) -> None:
        """Begin with these sources: requests of others go, and as many begin as are wanted."""
        if sources == self._sources:
            return
        kept = np.array([self._sources[int(index)] in sources for index in self._state["source"]], dtype=bool)
        moved = [sources.index(self._sources[int(index)]) for index in self._state["source"][kept]]
        self._state = {name: values[kept] for name, values in self._state.items()}
        self._state["source"] = np.array(moved, dtype=float)
        self._sources = sources
        self._labels = sorted({source.label for source in sources})
        self.by_source = np.zeros((len(sources), 2))
        self._by_position = np.ones((len(sources), K_MAX))
        for index, source in enumerate(sources):
            self._by_position[index, : len(source.by_position)] = source.by_position
        self._state["label"] = np.array([self._labels.index(sources[at].label) for at in moved], dtype=float)
        self._tables: dict[int, tuple[Ints, NDArray[np.bool_]]] = {}
        self._table_of: Any = object()
        counts = np.bincount(self._state["source"].astype(int), minlength=len(sources))
        if queue is None:
            wanted = [round(source.running) for source in sources]
            over = [index for index, count in enumerate(counts) if count > wanted[index]]
            for index in over:
                gone = np.flatnonzero(self._state["source"] == index)[wanted[index] :]
                self._state = {name: np.delete(values, gone) for name, values in self._state.items()}
            self._begin([i for i, want in enumerate(wanted) for _ in range(max(0, want - counts[i]))], is_first=True)
        else:
            self._begin(self._drawn(max(0, queue - len(self._state["p"]))), is_first=True)

    def _drawn(self, count: int) -> list[int]:
        shares = np.array([source.running for source in self._sources], dtype=float)
        if not count:
            return []
        return [int(index) for index in self.rng.choice(len(shares), count, p=shares / shares.sum())]

    def _begin(self, indices: Sequence[int], *, is_first: bool = False) -> None:
        """Let requests of these sources begin; the first ones somewhere within their replies."""
        if not indices:
            return
        new: dict[str, list[float]] = {name: [] for name in _FIELDS}
        for index in indices:
            source = self._sources[index]
            a, n = self._prior.get(source.label, [FIRST_ACCEPTANCE * FIRST_DRAFTS, FIRST_DRAFTS])
            length = self.reply_tokens * self.rng.uniform(0.5, 1.5)
            p = self._acceptance(source.kind)
            later = p if source.turns_to is None else self._acceptance(source.turns_to)
            said = self.rng.uniform(0, length) if is_first else 0.0
            self._to_prefill += source.prompt_tokens
            label = self._labels.index(source.label)
            values = (index, label, p, later, PRIOR_DRAFTS * a / n, PRIOR_DRAFTS, said, length,
                      source.prompt_tokens, 0.0, PROBE_AFTER, 1.0, 0.0)  # fmt: skip
            for name, value in zip(_FIELDS, values, strict=True):
                new[name].append(value)
        self._state = {name: np.append(values, new[name]) for name, values in self._state.items()}

    def _acceptance(self, kind: str | float) -> float:
        if not isinstance(kind, str):
            return kind
        quantiles = ACCEPTANCE[kind]
        return float(np.interp(self.rng.uniform(0, len(quantiles) - 1), range(len(quantiles)), quantiles))

    def _replace(self, queue: int | None) -> None:
        ended = self._state["said"] >= self._state["length"]
        if not ended.any():
            return
        sources = self._state["source"][ended].astype(int).tolist()
        self._state = {name: values[~ended] for name, values in self._state.items()}
        self._begin(sources if queue is None else self._drawn(len(sources)))

    def _step(self, schedule: Schedule | None, slowdown: float) -> float:
        s = self._state
        n = len(s["p"])
        label, source = s["label"].astype(int), s["source"].astype(int)
        band = np.searchsorted(BAND_EDGES, s["a"] / s["n"], side="right")
        if schedule is not self._table_of:
            self._table_of, self._tables = schedule, {}
        if n not in self._tables:
            self._tables[n] = self._k_of(schedule, n)
        k = self._tables[n][0][label, band]
        k = self._probed(schedule, k, self._tables[n][1][label, band])
        width = int(k.max())
        slots = int((k > 0).sum()) * width
        accepted = np.zeros(n, dtype=np.int64)
        if width:
            p = np.where(s["said"] < s["length"] / 2, s["p"], s["p_later"])
            by_position = self._by_position[source, :width]
            hits = self.rng.random((n, width)) < p[:, None] * by_position
            accepted = np.minimum(np.cumprod(hits, axis=1).sum(axis=1), k)
            drafted = k > 0
            s["a"] = np.where(drafted, KEPT * s["a"] + accepted, s["a"])
            s["n"] = np.where(drafted, KEPT * s["n"] + np.minimum(accepted + 1, k), s["n"])
            whole = drafted & (accepted == k)
            s["idle"] = np.where(whole, PROBE_AFTER, np.where(drafted, 0, s["idle"] + 1))
            s["depth"] = np.where(whole, np.minimum(2 * s["depth"], self.k_max), np.where(drafted, 1, s["depth"]))
            for index in np.flatnonzero(drafted & (s["drafts"] < FIRST_DRAFTS)):
                first = [FIRST_ACCEPTANCE * FIRST_DRAFTS, FIRST_DRAFTS]
                known = self._prior.setdefault(self._labels[label[index]], first)
                known[0] = PRIOR_KEPT * known[0] + float(accepted[index])
                known[1] = PRIOR_KEPT * known[1] + float(min(accepted[index] + 1, k[index]))
            s["drafts"] += drafted
        else:
            s["idle"] = s["idle"] + 1
        read = float(s["left"][k > 0].sum())
        s["left"] = np.where(k > 0, 0.0, s["left"] + 1)
        if s["left"].sum() > ROW_LIMIT:
            order = np.argsort(-s["left"])
            chosen = order[: max(1, int((np.cumsum(s["left"][order]) <= ROWS_PER_STEP).sum()))]
            read += float(s["left"][chosen].sum())
            s["left"][chosen] = 0
        prefill = min(self._to_prefill, PREFILL_CHUNK)
        self._to_prefill -= prefill
        verified, context = n + int(k.sum()), float((s["prompt"] + s["said"]).sum())
        seconds = self.step_s(n, verified, slots, prefill, context) + (self.catch_up_s(read) if read else 0.0)
        seconds *= slowdown * math.exp(self.rng.normal(0, 3 * self.noise))
        self.by_source[:, 0] += np.bincount(source, minlength=len(self._sources))
        self.by_source[:, 1] += np.bincount(source, weights=k, minlength=len(self._sources))
        for index, name in enumerate(self._labels):
            own = label == index
            self.counters.draft(name, band[own], k[own], accepted[own])
        self.counters.step(Step(n, verified, slots, prefill, context, read, seconds))
        s["said"] = s["said"] + 1 + accepted
        self.tokens += n + int(accepted.sum())
        return seconds

    def _probed(self, schedule: Schedule | None, k: Ints, banded: NDArray[np.bool_]) -> Ints:
        """Give requests at K = 0 that were not verified for long one token, or more while it is accepted."""
        if schedule is None or schedule.probe_ratio <= 0:
            return k
        state = self._state
        waiting = np.flatnonzero((k == 0) & banded & (state["idle"] >= PROBE_AFTER))
        self._probe_room = min(self._probe_room + schedule.probe_ratio * len(k), PROBES_AT_ONCE)
        count = min(len(waiting), int(self._probe_room))
        if not count or (not k.any() and count < min(len(waiting), PROBES_AT_ONCE)):
            return k
        chosen = waiting[np.argsort(state["left"][waiting], kind="stable")][:count]
        # Who goes on doubling is no charge on the bound: it is accepted whole.
        self._probe_room -= int((state["depth"][chosen] <= 1).sum())
        most = max((k_at(ranges, 1) for ranges in schedule.classes.values()), default=1)
        found = k.copy()
        found[chosen] = np.minimum(state["depth"][chosen], max(most, 1))
        for index in chosen:
            self.counters.probe(self._labels[int(state["label"][index])])
        self.deepest_probe = max(self.deepest_probe, int(found[chosen].max()))
        return found

    @property
    def values(self) -> dict[Series, float]:
        """Its counters, cumulative, as the adapter exports them."""
        return self.counters.values(self.claims)

    def observe(self, at: float) -> Observation:
        """Return what a scrape at `at` finds."""
        seen = Observation(self.engine_id, MODEL, POOL, at, self.started_at, self.values)
        if self.is_lying:
            self.frozen = self.frozen or seen
            return replace(self.frozen, at=at)
        self.frozen = None
        return seen


def uniform(k: int, version: int = 1) -> Schedule:
    """Return the schedule that gives everybody `k`."""
    return Schedule(MODEL, POOL, version, 0.0, 60.0, 0.0, {DEFAULT_CLASS: (KRange(1, 512, k),)})

"""An engine pool in virtual time: it applies a schedule by band as the adapter does, and counts what a real one counts.

Every request is a string of tokens that a draft would hit or not: a Bernoulli process with an acceptance of its own,
drawn from what requests of its kind had in 24,064 drafts of the demo pair at K = 7 (`ACCEPTANCE`: nine quantiles of the
conditional acceptance of 457 requests, by kind; `_hot` at temperature 1). Within a request it stayed the same (the
correlation of neighbouring drafts was 0.0 to 0.2), unless the reply turns into another kind half-way.

The engine follows each request's own acceptance by a moving estimate, finds its band and its K, lays out slots for
those with K > 0 only, leaves rows for those at K = 0 and catches up when they draft again, and probes single requests.
Each step is simulated, with its time by a true function of what is in it and some noise. Deterministic for a given
seed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import LABELS, Observation, Series
from specpilot.controller.law.k_table import k_at
from specpilot.policy import engine_metrics as names
from specpilot.policy.bands import BAND_EDGES, BANDS, row_of, row_parts
from specpilot.policy.types import DEFAULT_CLASS, KRange, Schedule

K_MAX = 7
MODEL, POOL = "demo", "cpu"
ACCEPTANCE: Mapping[str, tuple[float, ...]] = {
    "chat": (0.32, 0.42, 0.46, 0.54, 0.61, 0.69, 0.76, 0.79, 0.84),
    "chat_hot": (0.04, 0.07, 0.10, 0.10, 0.12, 0.14, 0.20, 0.56, 0.69),
    "code": (0.17, 0.27, 0.34, 0.38, 0.43, 0.46, 0.51, 0.66, 0.92),
    "code_hot": (0.07, 0.09, 0.10, 0.11, 0.12, 0.13, 0.15, 0.17, 0.25),
    "json": (0.95, 0.97, 0.98, 0.98, 0.98, 0.99, 0.99, 0.99, 1.00),
    "json_hot": (0.82, 0.84, 0.86, 0.86, 0.87, 0.88, 0.89, 0.90, 0.92),
}
REPLY_TOKENS = 150.0
ROW_S = 40e-3 / 1536  # to catch up a row that K = 0 left: docs/decisions/0004
READ_S = 1.5e-3  # and for every pass over rows
ROW_LIMIT, ROWS_PER_STEP = 8192, 1024
PREFILL_CHUNK = 512
KEPT, PRIOR_DRAFTS, FIRST_DRAFTS = 0.9, 3.0, 5
PROBE_AFTER, PROBES_AT_ONCE = 16, 8
StepTime = Callable[[float, float, float, float, float], float]
Vector = NDArray[np.float64]
Ints = NDArray[np.int64]


def cpu_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """The demo pair on two CPU cores: verification costs from the first token on."""
    drafter = 0.6 + 0.08 * slots if slots else 0.0
    return (2.2 + 0.06 * n + 0.1 * (m + prefill) + 0.05 * prefill + 0.0002 * context + drafter) / 1000


def gpu_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """A GPU: tokens are nearly free until the batch fills it, then linear; the drafter is a small model."""
    drafter = 0.9 + 0.012 * slots if slots else 0.0
    tokens = m + prefill
    return (9.0 + 0.02 * n + 0.004 * tokens + 0.06 * max(0.0, tokens - 96) + 0.0001 * context + drafter) / 1000


def concave_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """A processor that becomes more efficient with more rows."""
    del n, context
    return (2.0 + 0.3 * (m + prefill) ** 0.8 + (0.8 + 0.05 * slots if slots else 0.0)) / 1000


@dataclass(frozen=True)
class Source:
    """Requests of one kind (a key of `ACCEPTANCE`, or an acceptance): `running` at a time, or a share of a queue.

    Replies turn into `turns_to` half-way. `prompt_tokens` are prefilled, in chunks.
    """

    kind: str | float
    running: float
    label: str = DEFAULT_CLASS
    turns_to: str | float | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True)
class Phase:
    """Traffic for a while. With `queue` as many requests run in all, drawn from the sources by their shares.

    That is given work; without it each source keeps its own number running: given concurrency. `of_engine` are
    sources of engines that have others.
    """

    seconds: int
    sources: Sequence[Source]
    queue: int | None = None
    slowdown: float = 1.0
    of_engine: Mapping[str, Sequence[Source]] = field(default_factory=dict)


_FIELDS = ("source", "label", "p", "p_later", "a", "n", "said", "length", "prompt", "left", "idle", "depth", "drafts")


@dataclass
class Engine:
    """One engine of the plant. `claims` are acceptances, by position, that its counters tell whatever the truth is."""

    engine_id: str
    rng: np.random.Generator
    step_s: StepTime = cpu_step_s
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

    def __post_init__(self) -> None:
        self.restart(self.started_at)

    def restart(self, at: float) -> None:
        self.started_at = at
        self._outcomes: dict[str, Vector] = {}  # by label: [bands, K, accepted]
        self._cells: dict[str, Vector] = defaultdict(lambda: np.zeros(6))
        self._catch_ups: dict[str, Vector] = defaultdict(lambda: np.zeros(6))
        self._state = dict.fromkeys(_FIELDS, np.zeros(0))
        self._prior: dict[str, list[float]] = {}
        self._sources: list[Source] = []
        self._to_prefill = 0.0
        self._probe_room = 0.0
        self._probes: dict[str, float] = defaultdict(float)
        self._running: dict[str, int] = {}
        self.history: list[tuple[float, float]] = []

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
        self._running = {source.label: 0 for source in sources} | dict.fromkeys(self._running, 0)
        for label, count in zip(*np.unique(self._state["label"].astype(int), return_counts=True), strict=True):
            self._running[self._labels[label]] = int(count)
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
        return self.rng.choice(len(shares), count, p=shares / shares.sum()).tolist() if count else []

    def _begin(self, indices: Sequence[int], *, is_first: bool = False) -> None:
        """Let requests of these sources begin; the first ones somewhere within their replies."""
        if not indices:
            return
        new: dict[str, list[float]] = {name: [] for name in _FIELDS}
        for index in indices:
            source = self._sources[index]
            a, n = self._prior.get(source.label, [0.6 * FIRST_DRAFTS, FIRST_DRAFTS])
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
        label = s["label"].astype(int)
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
            hits = self.rng.random((n, width)) < p[:, None]
            accepted = np.minimum(np.cumprod(hits, axis=1).sum(axis=1), k)
            drafted = k > 0
            s["a"] = np.where(drafted, KEPT * s["a"] + accepted, s["a"])
            s["n"] = np.where(drafted, KEPT * s["n"] + np.minimum(accepted + 1, k), s["n"])
            whole = drafted & (accepted == k)
            s["idle"] = np.where(whole, PROBE_AFTER, np.where(drafted, 0, s["idle"] + 1))
            s["depth"] = np.where(whole, np.minimum(2 * s["depth"], self.k_max), np.where(drafted, 1, s["depth"]))
            for index in np.flatnonzero(drafted & (s["drafts"] < FIRST_DRAFTS)):
                known = self._prior.setdefault(self._labels[label[index]], [0.6 * FIRST_DRAFTS, FIRST_DRAFTS])
                known[0] = 0.97 * known[0] + float(accepted[index])
                known[1] = 0.97 * known[1] + float(min(accepted[index] + 1, k[index]))
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
        seconds = self.step_s(n, verified, slots, prefill, context) + (READ_S + ROW_S * read if read else 0.0)
        seconds *= slowdown * math.exp(self.rng.normal(0, 3 * self.noise))
        self._count(label, band, k, accepted, (n, verified, slots, prefill, context, read), seconds)
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
            self._probes[self._labels[int(state["label"][index])]] += 1
        self.deepest_probe = max(self.deepest_probe, int(found[chosen].max()))
        return found

    @property
    def probes(self) -> float:
        return sum(self._probes.values())

    def _count(self, label: Ints, band: Ints, k: Ints, accepted: Ints, what: tuple[float, ...], seconds: float) -> None:
        n, verified, slots, prefill, context, read = what
        size = BANDS * (K_MAX + 1) ** 2
        for index, name in enumerate(self._labels):
            own = label == index if len(self._labels) > 1 else slice(None)
            flat = (band[own] * (K_MAX + 1) + k[own]) * (K_MAX + 1) + accepted[own]
            if name not in self._outcomes:
                self._outcomes[name] = np.zeros(size)
            self._outcomes[name] += np.bincount(flat, minlength=size)
        key = ",".join(map(str, (rounded(int(n)), rounded(int(verified)), rounded(int(slots)))))
        if read:
            self._catch_ups[octaves(n, verified, slots)] += (1, seconds, n, verified, slots, read)
        else:
            self._cells[f"{key},{octave(int(prefill))}"] += (1, seconds, n, verified, slots, prefill)
        self._contexts[bool(read), key if not read else octaves(n, verified, slots), octave(int(prefill))] += context

    @property
    def _contexts(self) -> dict[Any, float]:
        if not hasattr(self, "_context_sums"):
            self._context_sums: dict[Any, float] = defaultdict(float)
        return self._context_sums

    @property
    def values(self) -> dict[Series, float]:
        """Its counters, cumulative, as the adapter exports them."""
        found: dict[Series, float] = defaultdict(float)
        for name, flat in self._outcomes.items():
            table = flat.reshape(BANDS, K_MAX + 1, K_MAX + 1)
            for band in range(BANDS):
                drafts = table[band].sum(axis=1)
                if not drafts.any():
                    continue
                for k in np.flatnonzero(drafts).tolist():
                    found[Series(names.DRAFTS, (name, str(band), str(k)))] = float(drafts[k])
                tokens = (table[band] * (1 + np.arange(K_MAX + 1))).sum()
                found[Series(names.DECODE_TOKENS, (name, str(band)))] = float(tokens)
                for position in range(1, K_MAX + 1):
                    tried = float(table[band, position:, position - 1 :].sum())
                    accepted = float(table[band, position:, position:].sum())
                    if position in self.claims:
                        accepted = self.claims[position] * tried
                    found[Series(names.TRIALS, (str(band), str(position)))] += tried
                    found[Series(names.ACCEPTS, (str(band), str(position)))] += accepted
        plain = (names.STEPS, names.STEP_SECONDS, names.STEP_DECODES, names.STEP_VERIFIED, names.STEP_SLOTS,
                 names.STEP_PREFILL)  # fmt: skip
        for key, sums in self._cells.items():
            labels = tuple(key.split(","))
            found |= {Series(metric, labels): float(value) for metric, value in zip(plain, sums, strict=True)}
            found[Series(names.STEP_CONTEXT, labels)] = self._contexts[False, ",".join(labels[:3]), labels[3]]
        caught = (names.CATCH_UP_STEPS, names.CATCH_UP_STEP_SECONDS, names.CATCH_UP_STEP_DECODES,
                  names.CATCH_UP_STEP_VERIFIED, names.CATCH_UP_STEP_SLOTS, names.CATCH_UP_STEP_READ)  # fmt: skip
        for key, sums in self._catch_ups.items():
            labels = tuple(key.split(","))
            found |= {Series(metric, labels): float(value) for metric, value in zip(caught, sums, strict=True)}
            context = sum(value for (read, at, _), value in self._contexts.items() if read and at == key)
            found[Series(names.CATCH_UP_STEP_CONTEXT, labels)] = context
        found |= {Series(names.PROBES, (name,)): count for name, count in self._probes.items()}
        for name, count in self._running.items():
            found[Series(names.RUNNING_DECODES, (name,))] = float(count)
        return dict(found)

    def observe(self, at: float) -> Observation:
        seen = Observation(self.engine_id, MODEL, POOL, at, self.started_at, self.values)
        if self.is_lying:
            self.frozen = self.frozen or seen
            return replace(self.frozen, at=at)
        self.frozen = None
        return seen


def rounded(count: int) -> int:
    if count <= 8:
        return count
    power = 1 << (count.bit_length() - 1)
    return power + (count - power) * 4 // power * power // 4


def octave(count: int) -> str:
    return str(1 << (count.bit_length() - 1)) if count else "0"


def octaves(*counts: float) -> str:
    return ",".join(octave(int(count)) for count in counts)


def uniform(k: int, version: int = 1) -> Schedule:
    """The schedule that gives everybody `k`."""
    return Schedule(MODEL, POOL, version, 0.0, 60.0, 0.0, {DEFAULT_CLASS: (KRange(1, 512, k),)})


def page(engine: Engine) -> str:
    """Its metrics in Prometheus' text format."""
    return "\n".join(
        f'{series.metric}{{model_name="{MODEL}",'
        + ",".join(f'{name}="{text}"' for name, text in zip(LABELS[series.metric], series.labels, strict=True))
        + f"}} {value}"
        for series, value in engine.values.items()
    )

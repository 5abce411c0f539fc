"""The evidence of one engine: the exact counters that its law and the controller need. Pure.

A step is counted as a whole (`commit`), under a lock that the exporting thread shares, so no reader sees half a step.
Between two steps the processor's caches hold the model, so code that runs between steps waits for memory. `commit`
therefore only notes a step, and some dozens are counted at once. `take_evidence` counts the rest, without the lock.

Trials and accepts: a draft of K tokens, the first j of them accepted, is a trial at positions 1..min(j + 1, K) and an
accept at 1..j. Positions past K or past the first rejection are censored and not counted, which makes the product-limit
estimate over drafts of different K exact.

A grammar may cut a draft at the first token that it does not allow. This is not censoring: the target under this
grammar could not have produced the token, so the draft was rejected at this position. If all tokens before it were
accepted, it is a trial at the position of the refused token, and no accept. Without this trial the acceptance under
every grammar would be overestimated.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import NamedTuple

from specpilot.engine_adapter.evidence.request_acceptance import trials

_COUNTED_TOGETHER = 32
"""Number of different steps that are noted before they are counted: some tenths of a millisecond of work with 32
running."""

_STEPS_KEPT = 4096
"""Number of latest steps that are kept one by one until the law takes them: some seconds on the fastest engine."""


class Cohort(NamedTuple):
    """Requests of one class in one band. `is_unprobed`: of a probed class, without a verified draft."""

    traffic_class: str
    band: int
    is_unprobed: bool = False


class Draft(NamedTuple):
    """One draft of `k` verified tokens, the first `accepted` of them accepted.

    `is_refused`: a grammar cut it after `k`. `band` is the band in which its K was chosen. `is_unprobed`: no draft of
    the request had been verified at that time. In vLLM's asynchronous loop this holds for the first three drafts of a
    request.
    """

    traffic_class: str
    band: int
    k: int
    accepted: int
    is_probe: bool = False
    is_refused: bool = False
    is_unprobed: bool = False


@dataclass(slots=True)
class Outcome:
    """The outcome of one step's decodes.

    `drafts` are the verified drafts. `plain` counts the decodes without a draft. `refused` are decodes whose grammar
    refused the first token of a draft: the band and `is_unprobed` of this draft. `tokens` are the tokens that all
    decodes delivered.
    """

    drafts: list[Draft] = field(default_factory=list)
    plain: dict[Cohort, int] = field(default_factory=dict)
    refused: list[tuple[int, bool]] = field(default_factory=list)
    tokens: dict[Cohort, int] = field(default_factory=dict)


class StepShape(NamedTuple):
    """The work of one step: running decodes, tokens verified for them, drafter slots, prefilled tokens.

    `read`: positions that the drafter read without drafting from them (`StepPlan.read`). `is_uniform`: all decodes have
    the same number of tokens in the step. `draft_context`: the sum, over its draft tokens, of their requests' context.
    `passes`: those that a sequential drafter makes after its first one, the plan's width less one.
    """

    decodes: int
    verified: int
    slots: int
    prefill: int = 0
    read: int = 0
    is_uniform: bool = True
    draft_context: int = 0
    passes: int = 0

    def cut(self, tokens: int) -> "StepShape":
        """Return the shape without `tokens` of its draft tokens, which were not verified."""
        if not tokens:
            return self
        verified, drafted = self.verified - tokens, self.verified - self.decodes
        context = self.draft_context * (drafted - tokens) // drafted
        return self._replace(verified=verified, is_uniform=verified == self.decodes, draft_context=context)


class StepKind(StrEnum):
    """The kind of a step: its work besides decodes."""

    DECODE = "decode"  # nothing
    PREFILL = "prefill"  # prefilled tokens
    PROMPT = "prompt"  # prefilled tokens, and no decode
    CATCH_UP = "catch_up"  # no prefilled tokens; its drafter read positions without drafting from them


@dataclass(slots=True)
class StepSums:
    """Sums over steps of one kind: their number, their duration, their decodes."""

    steps: int = 0
    seconds: float = 0.0
    decodes: int = 0


@dataclass(slots=True)
class Evidence:
    """Counts since the last `Meter.take_evidence`.

    `first_trials` and `first_accepts` are the part of `trials` and `accepts` from first drafts. These are in the band
    in which requests of their kind start, not in the band of their own text.
    """

    trials: Counter[tuple[int, int]] = field(default_factory=Counter)  # by band and position
    accepts: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_trials: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_accepts: Counter[tuple[int, int]] = field(default_factory=Counter)
    drafts: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # by class, band and K
    probes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[tuple[str, int]] = field(default_factory=Counter)  # by class and band
    unprobed: Counter[tuple[str, int]] = field(default_factory=Counter)  # decodes of requests without a verified draft
    steps: defaultdict[StepKind, StepSums] = field(default_factory=lambda: defaultdict(StepSums))

    def add(self, run: "_Run") -> None:
        """Add the steps of one run, without their drafts."""
        outcome, shape, steps = run.outcome, run.shape, run.steps
        for cohort, count in outcome.tokens.items():
            self.tokens[cohort[:2]] += steps * count
        for (traffic_class, band, is_unprobed), count in outcome.plain.items():
            self.drafts[traffic_class, band, 0] += steps * count
            if is_unprobed:
                self.unprobed[traffic_class, band] += steps * count
        for band, is_unprobed in outcome.refused:
            self.trials[band, 1] += steps
            if is_unprobed:
                self.first_trials[band, 1] += steps
        if shape.prefill or shape.decodes:
            sums = self.steps[kind_of_step(shape)]
            sums.steps += steps
            sums.seconds += run.seconds
            sums.decodes += steps * shape.decodes

    def add_drafts(self, draft: Draft, count: int) -> None:
        """Add `count` verified drafts of the same outcome."""
        traffic_class, band, k, accepted, is_probe, is_refused, is_unprobed = draft
        self.drafts[traffic_class, band, k] += count
        self.probes[traffic_class] += is_probe * count
        for position in range(1, trials(k, accepted, is_refused=is_refused) + 1):
            self.trials[band, position] += count
            if is_unprobed:
                self.first_trials[band, position] += count
        for position in range(1, accepted + 1):
            self.accepts[band, position] += count
            if is_unprobed:
                self.first_accepts[band, position] += count


def kind_of_step(shape: StepShape) -> StepKind:
    """Return the kind of a step that does something."""
    if shape.prefill:
        return StepKind.PREFILL if shape.decodes else StepKind.PROMPT
    return StepKind.CATCH_UP if shape.read else StepKind.DECODE


@dataclass(slots=True)
class _Run:
    """Consecutive steps of one shape and outcome; `seconds` and `context` are sums over them."""

    shape: StepShape
    outcome: Outcome
    seconds: float
    context: int
    steps: int = 1


class Meter:
    """Counts steps as they complete; another thread takes the counts away."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._evidence = Evidence()
        self._noted: list[_Run] = []
        self._steps: deque[tuple[StepShape, float, int]] = deque(maxlen=_STEPS_KEPT)

    def commit(self, shape: StepShape, seconds: float, context: int, outcome: Outcome) -> None:
        """Count one completed step, its duration, and the total length of its requests' sequences.

        A step with the same `outcome` object as the previous step also has the same shape; it only adds to a sum.
        """
        self._steps.append((shape, seconds, context))
        with self._lock:
            latest = self._noted[-1] if self._noted else None
            if latest is not None and latest.outcome is outcome:
                latest.steps += 1
                latest.seconds += seconds
                latest.context += context
                return
            self._noted.append(_Run(shape, outcome, seconds, context))
            if len(self._noted) >= _COUNTED_TOGETHER:
                _count(self._noted, self._evidence)
                self._noted = []

    def take_evidence(self, between: Callable[[], None] = lambda: None) -> Evidence:
        """Return the counts since the last call, and start from zero.

        `between` is called between two parts of the computation.
        """
        with self._lock:
            evidence, self._evidence = self._evidence, Evidence()
            noted, self._noted = self._noted, []
        _count(noted, evidence, between)
        return evidence

    def take_steps(self) -> list[tuple[StepShape, float, int]]:
        """Return the latest steps since the last call, one by one: shape, seconds, length of the sequences."""
        return [self._steps.popleft() for _ in range(len(self._steps))]


def _count(noted: Sequence[_Run], evidence: Evidence, between: Callable[[], None] = lambda: None) -> None:
    """Add the steps and the drafts of the `noted` runs to `evidence`."""
    drafts: Counter[Draft] = Counter()
    for run in noted:
        evidence.add(run)
        drafts.update(run.outcome.drafts * run.steps)
        between()
    for draft, count in drafts.items():
        evidence.add_drafts(draft, count)
        between()

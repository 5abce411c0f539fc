"""Latency goals of a traffic class, as operators promise them: `{"tpot_ms": {"p95": 30}, "ttft_ms": {"p95": 500}}`.

TPOT of a request is (last token - first token) / (tokens - 1), as vLLM, GuideLLM and AIPerf define it. TTFT is the time
from its arrival to its first token. Each measure has one statistic over requests: a percentile, or the mean.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from specpilot.policy.names import STRICT

TPOT: Final = "tpot"
TTFT: Final = "ttft"
MEASURES: Final = (TPOT, TTFT)
LEAST_MS, MOST_MS = 0.01, 1e7
"""Bounds on a goal; they only catch typing errors."""


SHARPNESS: Final = 16.0
"""How fast the share of requests within a goal falls as the predicted mean passes it: single requests differ from the
mean by about a tenth."""


def within_ratio(latency: float, bound: float) -> float:
    """Return the share of requests that are expected within a `bound` if a mean `latency` is predicted for them."""
    return 1.0 / (1.0 + math.pow(latency / bound, SHARPNESS))


def largest_mean(bound: float, ratio: float) -> float:
    """Return the mean latency at which this share of requests is expected within a `bound`; inverts `within_ratio`."""
    return bound * math.pow(1.0 / ratio - 1.0, 1.0 / SHARPNESS)


class Statistic(StrEnum):
    """What a goal bounds over the requests of a class."""

    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    MEAN = "mean"

    @property
    def ratio(self) -> float | None:
        """The share of requests that must be within the goal; `None` for the mean."""
        return None if self is Statistic.MEAN else int(self.value[1:]) / 100


@dataclass(frozen=True, slots=True)
class Goal:
    """One statistic and its largest value in milliseconds."""

    statistic: Statistic
    ms: float

    @property
    def text(self) -> str:
        """The goal in words: `p95 30 ms`."""
        return f"{self.statistic.value} {self.ms:g} ms"


OneGoal = Annotated[
    Mapping[Statistic, Annotated[float, Field(ge=LEAST_MS, le=MOST_MS)]], Field(min_length=1, max_length=1)
]
"""One statistic, and its largest value in milliseconds."""


@dataclass(frozen=True, slots=True, config=STRICT)
class Slo:
    """The goals of a class, each with one statistic; `None`: no goal for this measure."""

    tpot_ms: OneGoal | None = None
    ttft_ms: OneGoal | None = None

    def __hash__(self) -> int:
        """Hash the goals, so that guidance with the same goals is one requirement."""
        return hash(tuple(self.goals.items()))

    @property
    def goals(self) -> dict[str, Goal]:
        """The goals by measure (`MEASURES`)."""
        measures = ((TPOT, self.tpot_ms), (TTFT, self.ttft_ms))
        return {name: Goal(Statistic(key), ms) for name, values in measures for key, ms in (values or {}).items()}

    @property
    def tpot(self) -> Goal | None:
        """The goal of TPOT."""
        return self.goals.get(TPOT)

"""Questions that a controller asks the engines of a pool through Redis, and the engines' answers.

Only an engine knows its batch and its own estimates, so it explains its K and predicts another one. A question is
announced to the pool and stays readable for some seconds; each asked engine writes one answer.

| kind        | answer                                                                                     |
|-------------|--------------------------------------------------------------------------------------------|
| `explain`   | K of the present batch, why, and what is predicted: for K in force, for the choice of the law |
|             | by `guidance` (`None`: the guidance in force), and for the static K                        |
| `k_by_load` | K by number of running decodes, for requests like those of the latest batch                |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from specpilot.policy.latency_goal import Statistic
from specpilot.policy.schedule import Guidance, KRange

ALL_CLASSES = "*"
"""The name of the row of `Answer.k_by_load` for all requests together."""


class Kind(StrEnum):
    """The kinds of questions that this version knows."""

    EXPLAIN = "explain"
    K_BY_LOAD = "k_by_load"


@dataclass(frozen=True, slots=True)
class Question:
    """One question to `engines` of a pool. `kind` is text, because a newer controller may ask what this one cannot."""

    question_id: str
    kind: str
    engines: tuple[str, ...]
    guidance: Guidance | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted step of an engine's present batch under one choice of K.

    `k` is the mean K by class, `throughput` weighted tokens per second, `itl_ms` the mean inter-token latency by class.
    """

    k: Mapping[str, float]
    throughput: float
    step_s: float
    itl_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer.

    Attributes:
        version: the version of the schedule in force, 0 for none.
        source: the source of K; `cause` is that of the override in force.
        decodes: running decodes.
        unknown: why nothing is predicted; empty if something is.
        in_force, chosen, static: predictions (`Kind.EXPLAIN`).
        groups: K in force by group of requests, and why (`law.explained`).
        tpot_ms: by class and statistic the TPOT of the newest requests that ended.
        k_by_load: K by number of decodes: by class, and under `ALL_CLASSES` the mean over all requests.
        keeps_up_to: by class with a latency goal the largest of these numbers at which its bound is kept, 0 for none.
    """

    question_id: str
    engine_id: str
    version: int = 0
    source: str = ""
    cause: str | None = None
    decodes: int = 0
    unknown: str = ""
    in_force: Prediction | None = None
    chosen: Prediction | None = None
    static: Prediction | None = None
    groups: tuple[Mapping[str, Any], ...] = ()
    tpot_ms: Mapping[str, Mapping[Statistic, float]] = field(default_factory=dict)
    k_by_load: Mapping[str, tuple[KRange, ...]] = field(default_factory=dict)
    keeps_up_to: Mapping[str, int] = field(default_factory=dict)

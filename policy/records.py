"""Records in Redis: the facts of an engine, the decisions of a controller, its leadership."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pydantic.dataclasses import dataclass

from specpilot.policy.model_policy import Mode
from specpilot.policy.names import STRICT, ModelName, Name
from specpilot.policy.schedule import Schedule


def rank_id(server_id: str, rank: int) -> str:
    """Return the name of an engine that is one data-parallel rank of a server."""
    return f"{server_id}-dp{rank}"


@dataclass(frozen=True, slots=True, config=STRICT)
class EngineRecord:
    """The facts that an engine reports with every heartbeat.

    `k_max` is `num_speculative_tokens` at its start (0: it cannot speculate), `static_k` its own static K,
    `max_num_seqs` the largest number of running requests, `method` vLLM's name of the drafter,
    `schedule_version` the version in force (0: none). `stalled`: it has requests, and no step has ended for much longer
    than a step takes. `running_limit`: the most requests that gateways may have there, for its latency goals; `None`:
    any number. `rank`: its data-parallel rank, if others serve at the same `url`; `None`: it is alone there. Times are
    Unix seconds.
    """

    engine_id: Name
    url: str
    model: ModelName
    pool: Name
    k_max: int
    static_k: int
    max_num_seqs: int
    method: str
    vllm_version: str
    adapter_version: str
    started_at: float
    heartbeat_at: float
    schedule_version: int = 0
    draining: bool = False
    stalled: bool = False
    running_limit: int | None = None
    rank: int | None = None

    @property
    def server_id(self) -> str:
        """The name of the server at its `url`, which its ranks share."""
        return self.engine_id if self.rank is None else self.engine_id.removesuffix(rank_id("", self.rank))


@dataclass(frozen=True, slots=True, config=STRICT)
class Decision:
    """One controller tick for one (model, pool): its evidence, its choice and the reason.

    `reason` is a value of the controller's `Reason`. `evidence` has every number on which the decision is based,
    `schedule` is the result, `published` whether it was sent. `k` is the measured mean K by class; a class without
    decodes in the last scrape has none.
    """

    at: float
    model: str
    pool: str
    mode: Mode
    reason: str
    published: bool
    version: int
    schedule: Schedule | None
    evidence: Mapping[str, Any]
    k: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=STRICT)
class Lease:
    """Leadership of one controller: `fence` grows with every change of leader and is part of each write."""

    holder: str
    fence: int

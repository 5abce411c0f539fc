"""A canary: a new policy for one model, tried in random windows on the engines of the present one.

`Canary` is the operator's request, `Experiment` the record while it runs and after its end. Time is divided into
windows, and consecutive windows form a block. In each block one window, drawn at random, belongs to the canary and the
others to the present policy. A block yields the canary's gain over the present policy, by pool.

All are frozen and checked at creation.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass

from specpilot.policy.model_policy import Policy
from specpilot.policy.names import STRICT, raise_faults

BLOCKS_LIMIT = 500
"""Blocks of one experiment at most; it bounds the stored document."""

FEWEST_BLOCKS = 3
"""Blocks of one experiment at least: from fewer the noise cannot be estimated."""


class Arm(StrEnum):
    """The policy of a window."""

    PRESENT = "present"
    CANARY = "canary"


class Outcome(StrEnum):
    """How an experiment ended."""

    BETTER = "better"  # promoted
    PROMOTED = "promoted"  # promoted by an operator
    WORSE = "worse"  # rolled back, like all outcomes below
    INCONCLUSIVE = "inconclusive"
    NO_TRAFFIC = "no_traffic"
    POLICY_CHANGED = "policy_changed"
    ABORTED = "aborted"

    @property
    def is_promotion(self) -> bool:
        """Whether the canary became the model's policy."""
        return self in {Outcome.BETTER, Outcome.PROMOTED}


class Lost(StrEnum):
    """The reason for which a block does not count."""

    NO_TRAFFIC = "no_traffic"  # too few steps by one of the policies
    INTERRUPTED = "interrupted"  # the policies did not alternate as planned, or no controller ran


@dataclass(frozen=True, slots=True, config=STRICT)
class Canary:
    """The policy to try, and the rules of the decision.

    `share_ratio` is the share of time that each pool runs `policy`: one window out of 2 to 10. `window_s` is the length
    of a window. Nothing is promoted before `min_duration_s`; without a decision after `max_duration_s` the canary is
    rolled back. The canary is better if throughput or inter-token latency gains more than `minimum_gain_ratio` and the
    other is not below `-tolerance_ratio`. It is worse if either loses more than `tolerance_ratio`. `error_ratio` bounds
    the probability that a policy which is not better is promoted.
    """

    policy: Policy
    share_ratio: Annotated[float, Field(ge=0.1, le=0.5)] = 0.5
    window_s: Annotated[float, Field(ge=5, le=3600)] = 20.0
    min_duration_s: NonNegativeFloat = 600.0
    max_duration_s: Annotated[float, Field(ge=30, le=604_800)] = 3600.0
    minimum_gain_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    tolerance_ratio: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    error_ratio: Annotated[float, Field(ge=0.001, le=0.2)] = 0.05

    def __post_init__(self) -> None:
        faults = []
        if self.max_blocks < FEWEST_BLOCKS:
            least = FEWEST_BLOCKS * self.block_s
            faults.append(f"max_duration_s is {self.max_duration_s}; {FEWEST_BLOCKS} blocks take {least:g} s")
        if self.max_blocks > BLOCKS_LIMIT:
            faults.append(
                f"window_s is {self.window_s}; max_duration_s would hold {self.max_blocks} blocks, at most "
                f"{BLOCKS_LIMIT}: make the windows longer"
            )
        if self.min_duration_s > self.max_duration_s:
            faults.append(f"min_duration_s is {self.min_duration_s}; it must be at most max_duration_s")
        raise_faults(faults)

    @property
    def windows(self) -> int:
        """Windows in a block, one of them the canary's."""
        return round(1 / self.share_ratio)

    @property
    def block_s(self) -> float:
        """Seconds of a block."""
        return self.windows * self.window_s

    @property
    def max_blocks(self) -> int:
        """Whole blocks until the end."""
        return int(self.max_duration_s / self.block_s + 1e-9)


class Gain(NamedTuple):
    """The canary's gain in one block of one pool, as logarithms of ratios: positive is better.

    `busy_s`: the engines' seconds of steps in the block. `throughput`: canary over present, in tokens per such second.
    `itl`: present over canary, in mean inter-token latency.
    """

    busy_s: float
    throughput: float
    itl: float


@dataclass(frozen=True, slots=True, config=STRICT)
class Block:
    """One block that counts: its number, from 0, and the gain in each pool."""

    index: int
    pools: Mapping[str, Gain]


@dataclass(frozen=True, slots=True, config=STRICT)
class Experiment:
    """A canary as it is stored.

    `version` counts the writes. `experiment_id` seeds the order of the windows. `base_version` is the version of the
    policy that the canary is compared with, 0 for the defaults. Times are Unix seconds. `outcome` is `None` while it
    runs; `evidence` has the numbers of the decision.
    """

    version: int
    experiment_id: str
    canary: Canary
    base_version: int
    started_at: float
    blocks: tuple[Block, ...] = ()
    lost: Mapping[Lost, int] = field(default_factory=dict)
    ended_at: float | None = None
    outcome: Outcome | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model whose policy is tried."""
        return self.canary.policy.model

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.outcome is None

    @property
    def closed(self) -> int:
        """The number of blocks that are over, whether or not they count."""
        return len(self.blocks) + sum(self.lost.values())

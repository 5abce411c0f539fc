"""Data-parallel ranks: the engines of one server.

vLLM starts an engine core for each rank of a dense model, with a scheduler, a KV cache and a model of its own, and
spreads the requests over them. So each rank is an engine: it chooses its K, calibrates itself, registers under a name
of its own and writes its own metrics. Only the address is shared.

A rank reads a `data_parallel_size` of 1 in its configuration (`reconfigure_for_independent_dp_rank`), so the server's
process leaves the size in the environment (`RANKS`) before it starts the ranks.

Ranks of a mixture of experts are engines too, but run *in lockstep*: they exchange tokens in every pass of the target,
and of a drafter with experts, so all must make the same passes. What follows for each of them:

- its drafter makes the same passes in every step, whatever its K: a sequential one drafts K_max tokens, a parallel one
  at least one; K decides how many of them are verified (`engine_facts.least_widths`);
- nothing is read late, so the drafter is never left out and never catches up (`ConfigFacts.why_in_every_step`,
  `plan.catch_up`). A step near the drafter's longest sequence, in which V1 drafts nothing, leaves unread positions, as
  in stock vLLM, which runs the drafter's passes there over one token;
- its CUDA graphs are vLLM's. Graphs for several K are chosen by the lengths of a rank's own batch, on V2 in the
  drafter's first pass (`v2.graphs.note_longest`), on V1 in the target's step, where vLLM asserts that the ranks'
  padding agrees (`_determine_batch_execution_and_padding`).

Each rank chooses K for its own requests. A step lasts as long as that of the slowest rank.
"""

import os
from typing import Any

RANKS = "SPECPILOT_RANKS"
"""The variable with the number of data-parallel ranks, for the processes of one server. It is set by the first."""


def share_size(size: int) -> None:
    """Leave the number of ranks for the processes that this one starts."""
    os.environ[RANKS] = str(size)


def size_of(vllm_config: Any) -> int:
    """Return the number of data-parallel ranks of which this engine is one; 1: no data parallelism."""
    size: int = vllm_config.parallel_config.data_parallel_size
    return max(size, int(os.environ.get(RANKS, "1")))


def in_lockstep(vllm_config: Any) -> bool:
    """Whether this engine is a rank that makes every pass together with others."""
    return bool(size_of(vllm_config) > 1 and vllm_config.model_config.is_moe)


def rank_of(vllm_config: Any) -> int | None:
    """Return the data-parallel rank of an engine core; `None` without data parallelism."""
    return vllm_config.parallel_config.data_parallel_index if size_of(vllm_config) > 1 else None


def has_ranks_elsewhere(parallel_config: Any) -> bool:
    """Whether the server sends requests to ranks that may run on other machines; known in the server's process alone.

    Such a rank could not share its metrics through a folder. In vLLM's hybrid mode each machine has a server.
    """
    parallel = parallel_config
    if parallel.data_parallel_size == 1:
        return False
    if parallel.data_parallel_backend == "ray":
        return True
    return not parallel.local_engines_only and bool(parallel.data_parallel_size_local < parallel.data_parallel_size)


def is_launched_outside(parallel_config: Any) -> bool:
    """Whether each worker has a scheduler of its own, as with `torchrun`, and is one of several."""
    parallel = parallel_config
    return parallel.distributed_executor_backend == "external_launcher" and bool(parallel.world_size > 1)

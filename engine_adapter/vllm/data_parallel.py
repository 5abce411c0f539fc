"""Data-parallel ranks: the engines of one server.

vLLM starts an engine core for each rank of a dense model, with a scheduler, a KV cache and a model of its own, and
spreads the requests over them. So each rank is an engine: it chooses its K, calibrates itself, registers under a name
of its own and writes its own metrics. Only the address is shared.

A rank reads a `data_parallel_size` of 1 in its configuration (`reconfigure_for_independent_dp_rank`), so the server's
process leaves the size in the environment (`RANKS`) before it starts the ranks.

Ranks of a mixture of experts exchange tokens in every pass, and are rejected beside speculation (`compat`). A width of
K_max in every step and no backlog would give all ranks the same passes, but not the same padding: graphs for several K
are chosen by lengths of a rank's own batch, on V2 in the drafter's first pass (`v2.graphs.note_longest`), on V1 in the
target's step, where vLLM asserts that the ranks' padding agrees (`_determine_batch_execution_and_padding`).
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


def rank_of(vllm_config: Any) -> int | None:
    """Return the data-parallel rank of an engine core; `None` without data parallelism."""
    return vllm_config.parallel_config.data_parallel_index if size_of(vllm_config) > 1 else None


def has_ranks_elsewhere(parallel_config: Any) -> bool:
    """Whether the server sends requests to ranks that may run on other machines; known in the server's process alone.

    Such a rank could not share its metrics through a folder. In vLLM's hybrid mode each machine has a server.
    """
    parallel = parallel_config
    if parallel.data_parallel_size == 1 or parallel.local_engines_only:
        return False
    return bool(
        parallel.data_parallel_backend == "ray" or parallel.data_parallel_size_local < parallel.data_parallel_size
    )

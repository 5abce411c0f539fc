"""The query lengths with FULL CUDA graphs of their own, on either model runner.

The *query length* q of a request is its number of tokens in the step: 1 + K for a decode.
"""

from specpilot.engine_adapter.settings import AdapterSettings

ANY_MIX_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")
"""Attention backends whose graphs for any mix ran on a GPU. FLEX_ATTENTION declares `ALWAYS` too, but a replay uses the
block masks of the capture; ROCM_ATTN was not tried."""
UNIFORM_K = (0, 1, 2, 3, 5, 7)
"""K with FULL graphs of their own, beside K_max, on a backend without graphs for any mix.

Each takes 54 to 262 MiB and about a second of the start for an 8B model (H200). K = 4 and 6 are left out: padding a
request by one token takes 10 to 15 microseconds, a missing FULL graph 5 milliseconds.
"""


def query_lengths(k_max: int, *, any_mix: bool) -> tuple[int, ...]:
    """Return the query lengths with FULL graphs of their own.

    These are q = 1 and those of the operator's list (`graph_k`). Without graphs for any mix, K_max is always added, and
    `UNIFORM_K` is the default of the operator's list.
    """
    chosen = AdapterSettings().graph_k
    depths = {0, *(chosen or ())} if any_mix else {0, k_max, *(UNIFORM_K if chosen is None else chosen)}
    return tuple(sorted(1 + k for k in depths if k <= k_max))

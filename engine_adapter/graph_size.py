"""The size of the largest CUDA graph of an engine that speculates, if its user sets none.

vLLM's own default is 512 tokens on Hopper. A step of n requests at K has n (1 + K) tokens. So with K_max = 7 a step of
more than 64 requests has no graph and takes 1.5 times as long (49 instead of 33 ms at 128 requests of an 8B model,
H200).
"""

LARGEST = 1024
"""Tokens. 83 FULL graphs for any mix of K take 1.7 GiB and 4 s of the start at this size (8B model, H200). Above it a
step takes 33 ms, most of it arithmetic, so a missing graph matters less."""
DEFAULT = 512
"""vLLM's own largest size, in tokens; no smaller one is set."""

_STEP = 16
"""Above 256 tokens vLLM captures multiples of this number, up to the given size."""


def capture_size(running: int | None, k_max: int | None) -> int | None:
    """Return the largest size in tokens; `None`: vLLM's own default covers `running` requests at `k_max`.

    `running`: the number of requests that may run at once; `None`: vLLM's default. `k_max`: `None` if only vLLM knows.
    """
    size = LARGEST if running is None or k_max is None else min(LARGEST, -(-running * (1 + k_max) // _STEP) * _STEP)
    return size if size > DEFAULT else None

"""The capture size of CUDA graphs that `specpilot engine` passes to vLLM if the operator gives none.

vLLM's own default is 512 tokens on Hopper. A step of n requests at K has n (1 + K) tokens. So with K_max = 7 a step of
more than 64 requests has no graph and takes 1.5 times as long (49 instead of 33 ms at 128 requests of an 8B model,
H200).
"""

from collections.abc import Sequence

CAPTURE_SIZE = "--max-cudagraph-capture-size"
LARGEST = 1024
"""Tokens. 83 FULL graphs for any mix of K take 1.7 GiB and 4 s of the start at this size (8B model, H200). Above it a
step takes 33 ms, most of it arithmetic, so a missing graph matters less."""
DEFAULT = 512
"""vLLM's own largest size, in tokens; `specpilot engine` sets no smaller size."""

_STEP = 16
"""Above 256 tokens vLLM captures multiples of this number, up to the given size."""

_SIZE_FLAGS = (CAPTURE_SIZE, "--cudagraph-capture-sizes", "--compilation-config", "-O", "-cc", "--enforce-eager")
"""vLLM's flags that set the capture size or switch graphs off, also with a suffix: `-O3`, `-cc.cudagraph_mode=NONE`."""


def capture_size(vllm_flags: Sequence[str], k_max: int) -> list[str]:
    """Return the flag that sets the capture size; none if the `vllm_flags` set it.

    A file of flags (`--config`) may set it: vLLM would prefer the flag, or refuse it together with the file's sizes.
    """
    flags = [argument.replace("_", "-") for argument in vllm_flags]
    if "--config" in flags or any(flag.startswith(_SIZE_FLAGS) for flag in flags):
        return []
    running = _max_num_seqs(flags)
    size = LARGEST if running is None else min(LARGEST, -(-running * (1 + k_max) // _STEP) * _STEP)
    return [CAPTURE_SIZE, str(size)] if size > DEFAULT else []


def _max_num_seqs(flags: Sequence[str]) -> int | None:
    """Return the number of requests that may run at once by vLLM's flags; `None` without such a flag."""
    name, last = "--max-num-seqs", None
    for place, flag in enumerate(flags):
        if flag.startswith(name + "="):
            last = flag.removeprefix(name + "=")
        elif flag == name and place + 1 < len(flags):
            last = flags[place + 1]
    return int(last) if last is not None and last.isdecimal() else None

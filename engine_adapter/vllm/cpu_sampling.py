"""Repairs of vLLM on CPUs without Triton, where plain functions stand in for its kernels.

*Temperatures above 0* (0.29 to 0.32): `rejection_sampler.expand_batch_to_tokens` hands its float output to a function
for integers through a converted copy that is never copied back. The logits of drafted positions are then divided by
uninitialised memory instead of the temperature: almost every draft is rejected, and the text is not the target's.

*Any draft at all* (0.30): the stand-ins are put where the rejection sampler no longer looks for its kernels, so the
first step that verifies a draft ends the engine. (The same befalls the kernel of sequential drafters there, whose
stand-in takes other arguments besides: they stay broken.)

GPUs are not affected. Remove each repair when no tested version of vLLM needs it.
"""

from types import FunctionType, ModuleType

import torch


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Return each request's value of `x` [requests] once for each of its tokens: [num_tokens].

    `cu_num_tokens` [requests] is the running total of tokens; values equal to `replace_from` become `replace_to`.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)


def reach_kernels(launchers: ModuleType, stand_ins: ModuleType) -> None:
    """Give every launcher whose kernel is a function that only Triton could run the stand-in of the same name."""
    for launcher in vars(launchers).values():
        kernel = getattr(launcher, "kernel", None)
        if isinstance(kernel, FunctionType) and hasattr(stand_ins, kernel.__name__):
            launcher.kernel = getattr(stand_ins, kernel.__name__)


def install() -> None:
    """Put the repairs in place in this process, if vLLM runs on a CPU; harmless when called again."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - vLLM imports the plugin while it starts

    if current_platform.is_cpu():
        from vllm.triton_utils import HAS_TRITON  # noqa: PLC0415
        from vllm.utils import cpu_triton_utils  # noqa: PLC0415
        from vllm.v1.sample import rejection_sampler  # noqa: PLC0415

        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        if not HAS_TRITON:
            reach_kernels(rejection_sampler, cpu_triton_utils)

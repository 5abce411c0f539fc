"""Repairs of vLLM on CPUs.

*A seed, a temperature above 0, and a prompt that is prefilled in parts* (0.29 to 0.32): the sample of an unfinished
prompt is dropped, and the request's generator is reset by an offset. Generators of CPUs have no offset, so the engine
ends. One long prompt with a seed is enough, or a few short ones that arrive together.

Without Triton plain functions replace its kernels, with two more faults:

*Temperatures above 0* (0.29 to 0.32): `rejection_sampler.expand_batch_to_tokens` hands its float output to a function
for integers through a converted copy that is never copied back. The logits of drafted positions are then divided by
uninitialised memory instead of the temperature: almost every draft is rejected, and the text is not that of the target.

*Any draft* (0.30): the rejection sampler no longer looks for its kernels where the replacements are, so the first step
that verifies a draft ends the engine. (The kernel of sequential drafters has the same fault, and its replacement takes
other arguments: these drafters are not repaired.)

GPUs are not affected. Remove each repair when no tested version of vLLM needs it.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
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
    """Give every launcher with a kernel for Triton the replacement of the same name."""
    for launcher in vars(launchers).values():
        kernel = getattr(launcher, "kernel", None)
        if isinstance(kernel, FunctionType) and hasattr(stand_ins, kernel.__name__):
            launcher.kernel = getattr(stand_ins, kernel.__name__)


def sampling_with_seeds_of_whole_prompts(sample_tokens: Callable[..., Any]) -> Callable[..., Any]:
    """Return `sample_tokens` of a model runner, without the generators of requests with an unfinished prompt.

    Their sample is dropped, so it may be any token. An unused generator needs no reset.
    """

    @wraps(sample_tokens)
    def sample_tokens_seeded(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        going_on = np.flatnonzero(self.discard_request_mask.np[: batch.num_reqs]).tolist()
        unused = {index: batch.generators.pop(index) for index in going_on if index in batch.generators}
        try:
            return sample_tokens(self, *args, **kwargs)
        finally:
            batch.generators.update(unused)

    return sample_tokens_seeded


@cache
def install() -> None:
    """Install the repairs in this process, if vLLM runs on a CPU; harmless when called again."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - vLLM imports the plugin while it starts

    if current_platform.is_cpu():
        from vllm.triton_utils import HAS_TRITON  # noqa: PLC0415
        from vllm.utils import cpu_triton_utils  # noqa: PLC0415
        from vllm.v1.sample import rejection_sampler  # noqa: PLC0415
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415

        GPUModelRunner.sample_tokens = sampling_with_seeds_of_whole_prompts(GPUModelRunner.sample_tokens)
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        if not HAS_TRITON:
            reach_kernels(rejection_sampler, cpu_triton_utils)

"""A repair of vLLM 0.32 on CPUs without Triton: speculation at a temperature above 0.

There, `rejection_sampler.expand_batch_to_tokens` hands its float output to a kernel for integers through a converted
copy that is never copied back. The logits of drafted positions are then divided by uninitialised memory instead of the
temperature: almost every draft is rejected, and the text is not the target's. Temperature 0 and GPUs are not affected.

Remove this file when no tested version of vLLM needs it.
"""

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


def install() -> None:
    """Put the repaired function in place in this process, if vLLM runs on a CPU; harmless when called again."""
    from vllm.platforms import current_platform  # noqa: PLC0415 - vLLM imports the plugin while it starts

    if current_platform.is_cpu():
        from vllm.v1.sample import rejection_sampler  # noqa: PLC0415

        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens

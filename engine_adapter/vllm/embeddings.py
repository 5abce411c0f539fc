"""The embeddings of images and sound at some positions of a step, for a pass of the drafter over these alone.

vLLM passes its drafters the embeddings of the whole step, in the order of its positions, and which positions have one.
A drafter reads a position ahead of the target, so these are of the tokens that follow the positions.
"""

from collections.abc import Sequence

import torch

from specpilot.engine_adapter.vllm.rows import handed_over


def of_positions(
    positions_cpu: torch.Tensor,
    embeddings: Sequence[torch.Tensor],
    is_embedding_cpu: torch.Tensor,
    device: torch.device,
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """Return the embeddings at these positions of the step, and which of the positions have one.

    The last position of a prompt may belong to an image, also of a request that is left out.
    """
    chosen_cpu = is_embedding_cpu[positions_cpu]
    if int(chosen_cpu.sum()) < int(is_embedding_cpu.sum()):
        rows_cpu = (is_embedding_cpu.cumsum(0) - 1)[positions_cpu][chosen_cpu]
        embeddings = [torch.cat(list(embeddings))[handed_over(rows_cpu, device)]]
    return embeddings, chosen_cpu

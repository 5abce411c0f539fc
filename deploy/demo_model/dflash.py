"""A DFlash head: a block of drafts in one pass, over keys and values that are projected from the target's states.

As in vLLM's `DFlashQwen3Model`:

- a known position p gives each layer the keys and values of the target's states at p, projected and normed, nothing
  else: no token, no pass through the layers;
- the block after anchor a (the last position whose states are known) has the token at a+1 and a mask at each of the
  next positions. Each of them sees the known positions q <= a and the whole block;
- the mask at a+2+d drafts the token there, so it is the element (a+d, d) of `heads`.

Embedding and output matrix are the target's, and not in the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .heads import Elements, Head
from .llama import (
    MASK_ID,
    DecoderLayer,
    Llama,
    RMSNorm,
    Shape,
    initialise,
    read_checkpoint,
    rotary_angles,
    write_checkpoint,
)

BLOCKS = 24
"""Blocks of a row in a batch of the training."""
_OF_TARGET = ("embed_tokens", "lm_head")


class BlockLayer(DecoderLayer):
    """A decoder layer with normed queries and keys, whose block also sees the context."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.self_attn.q_norm, self.self_attn.k_norm = (RMSNorm(shape.head_dim, shape.rms_norm_eps) for _ in range(2))

    def forward(  # type: ignore[override]
        self, x: Tensor, angles: tuple[Tensor, Tensor], context: Tensor, known: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Residual stream [B, N, H] of the blocks; context [B, T, H] is normed, `known` are its angles."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), angles)
        _, keys, values = self.self_attn.project(context, known)
        x = x + self.self_attn.attend(q, torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlashHead(Head):
    """Layers over blocks, with the target's own embedding and output matrix, which are not trained."""

    def __init__(self, target: Llama, layers: int, aux_layers: tuple[int, ...]) -> None:
        nn.Module.__init__(self)
        self.shape, self.parallel, self.name = replace(target.shape, num_hidden_layers=layers), True, "dflash"
        self.aux_layers = aux_layers
        self.fc = nn.Linear(len(aux_layers) * self.shape.hidden_size, self.shape.hidden_size, bias=False)
        self.layers = nn.ModuleList([BlockLayer(self.shape) for _ in range(layers)])
        self.apply(initialise)
        self.hidden_norm, self.norm = (RMSNorm(self.shape.hidden_size, self.shape.rms_norm_eps) for _ in range(2))
        self.norm.load_state_dict(target.norm.state_dict())
        self.embed_tokens, self.lm_head = target.embed_tokens, target.lm_head

    def forward(self, tokens: Tensor, aux: Tensor, extra: Elements, depths: int) -> list[tuple[Elements, Tensor]]:
        """As `Head.forward`, of whole blocks after the anchors in `extra`; of some of these while it is trained."""
        anchors = torch.unique(extra.position - extra.depth)
        if self.training:
            anchors = anchors[torch.randperm(len(anchors))[:BLOCKS]]
        rows, size = tokens.shape[0], depths + 1
        block = torch.full((rows, len(anchors), size), MASK_ID)
        block[:, :, 0] = tokens[:, anchors + 1]
        anchor = anchors.repeat_interleave(size)
        offset = torch.arange(size).repeat(len(anchors))
        length = torch.arange(tokens.shape[1])
        mask = torch.cat((length[None, :] <= anchor[:, None], anchor[None, :] == anchor[:, None]), dim=1)
        angles, known = rotary_angles(self.shape, anchor + 1 + offset), rotary_angles(self.shape, length)
        context = self.hidden_norm(self.fc(aux))
        x = self.embed_tokens(block.flatten(1))
        for layer in self.layers:
            x = layer(x, angles, context, known, mask)
        drafted = offset > 0
        elements = Elements((anchor + offset - 1)[drafted], (offset - 1)[drafted])
        return [(elements, self.norm(x)[:, drafted])]


def save_dflash(head: DFlashHead, depths: int, folder: Path) -> None:
    """Write the checkpoint that vLLM loads as `dflash`; `depths` is the number of its drafts."""
    config = {
        "architectures": ["DFlashDraftModel"],
        **head.shape.hf_config(),
        "model_type": "qwen3",
        "block_size": depths + 1,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [layer - 1 for layer in head.aux_layers]},
    }
    tensors = {name: value for name, value in head.state_dict().items() if not name.startswith(_OF_TARGET)}
    write_checkpoint(folder, config, tensors)


def load_dflash(folder: Path, target: Llama) -> DFlashHead:
    """Read what `save_dflash` wrote, in bf16."""
    config, shape, tensors = read_checkpoint(folder)
    aux_layers = tuple(layer + 1 for layer in config["dflash_config"]["target_layer_ids"])
    head = DFlashHead(target, shape.num_hidden_layers, aux_layers)
    head.load_state_dict(tensors, strict=False)
    return head.to(torch.bfloat16).eval()

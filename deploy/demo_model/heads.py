"""The two draft heads and the elements they are trained on.

Owns: the EAGLE-3 layer, both heads' forward passes, and the attention mask over slots. As in vLLM:

- the slot at position p takes the embedding of token p+1 and the target's hidden state at p, and drafts
  token p+2; queries are causal over slots;
- an element (p, d) is that slot as drafted d tokens past the last known one, its anchor is a = p - d.
  P-EAGLE gives elements with d > 0 the mask token and the shared mask hidden state, all at once; EAGLE-3
  gives them the drafted token and its own output at (p - 1, d - 1), one depth after the other;
- (p, d) sees the known slots q <= a and the elements of its own anchor up to its depth.

Under teacher forcing this is exact for acceptance: a draft counts only while all before it were right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .llama import (
    MASK_ID,
    MLP,
    Attention,
    DecoderLayer,
    Llama,
    RMSNorm,
    Shape,
    initialise,
    read_checkpoint,
    rotary_angles,
    write_checkpoint,
)

Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Elements:
    """Positions and depths [N] of the slots in one pass."""

    position: Tensor
    depth: Tensor

    def sees(self, other: Elements) -> Tensor:
        """Boolean [N, M]: which elements of `other` each of these may look at."""
        anchor = (self.position - self.depth)[:, None]
        known = (other.depth == 0)[None, :] & (other.position[None, :] <= anchor)
        same_anchor = ((other.position - other.depth)[None, :] == anchor) & (other.depth > 0)[None, :]
        return known | (same_anchor & (other.depth[None, :] <= self.depth[:, None]))


def known_elements(length: int) -> Elements:
    """Depth 0 at every position."""
    return Elements(torch.arange(length), torch.zeros(length, dtype=torch.long))


class FirstLayer(nn.Module):
    """Attention over the concatenation of embedding and hidden state."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, 2 * shape.hidden_size)
        self.mlp = MLP(shape)
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RMSNorm(shape.hidden_size, shape.rms_norm_eps) for _ in range(3)
        )

    def forward(
        self, embeds: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor, cache: Cache
    ) -> Tensor:
        """Residual stream [B, N, H]; appends this pass's keys and values to `cache`."""
        mixed = torch.cat((self.input_layernorm(embeds), self.hidden_norm(hidden)), dim=-1)
        q, k, v = self.self_attn.project(mixed, angles)
        cache.append((k, v))
        keys, values = (torch.cat(part, dim=2) for part in zip(*cache, strict=True))
        x = hidden + self.self_attn.attend(q, keys, values, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Head(nn.Module):
    """A draft head; `parallel` is P-EAGLE, otherwise EAGLE-3 (one layer)."""

    def __init__(self, shape: Shape, aux_layers: tuple[int, ...], *, parallel: bool) -> None:
        super().__init__()
        self.shape, self.aux_layers, self.parallel = shape, aux_layers, parallel
        self.name = "peagle" if parallel else "eagle3"
        aux_size = len(aux_layers) * shape.hidden_size
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.fc = nn.Linear(aux_size, shape.hidden_size, bias=False)
        self.layers = nn.ModuleList(
            [FirstLayer(shape), *(DecoderLayer(shape) for _ in range(shape.num_hidden_layers - 1))]
        )
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.apply(initialise)
        if parallel:
            self.mask_hidden = nn.Parameter(0.02 * torch.randn(1, 1, aux_size))

    def forward(self, tokens: Tensor, aux: Tensor, extra: Elements, depths: int) -> list[tuple[Elements, Tensor]]:
        """Normed outputs [B, N, H] of groups of elements; `lm_head` makes logits of them.

        tokens [B, T], aux [B, T, 3H]. P-EAGLE drafts the known elements and those in `extra` in one pass;
        EAGLE-3 ignores `extra` and drafts every position at `depths` depths. Position p needs token p+1,
        so the last position is left out.
        """
        known = known_elements(tokens.shape[1] - 1)
        hidden = self.fc(aux[:, :-1])
        embeds = self.embed_tokens(tokens[:, 1:])
        if self.parallel:
            return [self._parallel_pass(known, extra, embeds, hidden)]
        return self._passes(known, embeds, hidden, depths)

    def _passes(self, known: Elements, embeds: Tensor, hidden: Tensor, depths: int) -> list[tuple[Elements, Tensor]]:
        passes, context, cache = [], known, Cache()
        for depth in range(depths):
            now = Elements(known.position[depth:], known.depth[depth:] + depth)
            if depth:
                hidden = hidden[:, :-1]
                context = Elements(torch.cat((context.position, now.position)), torch.cat((context.depth, now.depth)))
            angles = rotary_angles(self.shape, now.position)
            hidden = self.layers[0](embeds[:, depth:], hidden, angles, now.sees(context), cache)
            passes.append((now, self.norm(hidden)))
        return passes

    def _parallel_pass(
        self, known: Elements, extra: Elements, embeds: Tensor, hidden: Tensor
    ) -> tuple[Elements, Tensor]:
        rows, count = embeds.shape[0], extra.position.shape[0]
        every = Elements(torch.cat((known.position, extra.position)), torch.cat((known.depth, extra.depth)))
        mask_embed = self.embed_tokens(torch.tensor([MASK_ID]))[None].to(embeds.dtype)
        mask_hidden = self.fc(self.mask_hidden)
        embeds = torch.cat((embeds, mask_embed.expand(rows, count, -1)), dim=1)
        hidden = torch.cat((hidden, mask_hidden.to(hidden.dtype).expand(rows, count, -1)), dim=1)
        angles, mask = rotary_angles(self.shape, every.position), every.sees(every)
        x = self.layers[0](embeds, hidden, angles, mask, Cache())
        for layer in self.layers[1:]:
            x = layer(x, angles, mask)
        return every, self.norm(x)


def new_head(target: Llama, layers: int, aux_layers: tuple[int, ...], *, parallel: bool) -> Head:
    """A head that starts from the target's embedding, output matrix and final norm."""
    head = Head(replace(target.shape, num_hidden_layers=layers), aux_layers, parallel=parallel)
    for name in ("embed_tokens", "lm_head", "norm"):
        getattr(head, name).load_state_dict(getattr(target, name).state_dict())
    return head


def save_head(head: Head, folder: Path) -> None:
    """Write the checkpoint that vLLM loads as `eagle3`."""
    ids = list(head.aux_layers)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **head.shape.hf_config(),
        "draft_vocab_size": head.shape.vocab_size,
        "target_hidden_size": head.shape.hidden_size,
        "norm_before_residual": False,
        "num_aux_hidden_states": len(ids),
        "eagle_aux_hidden_state_layer_ids": ids,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True},
    }
    if head.parallel:
        config["ptd_token_id"] = MASK_ID
    write_checkpoint(folder, config, head.state_dict())


def load_head(folder: Path) -> Head:
    """Read what `save_head` wrote, in bf16."""
    config, shape, tensors = read_checkpoint(folder)
    head = Head(shape, tuple(config["eagle_aux_hidden_state_layer_ids"]), parallel="ptd_token_id" in config)
    head.load_state_dict(tensors)
    return head.to(torch.bfloat16).eval()

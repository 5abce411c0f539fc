"""The target as a MiMo model with an MTP layer: the layer, its passes, its checkpoint.

MiMo is Qwen2, which is Llama with biases; the target's are zero. As in vLLM's `MiMoMTP`:

- the slot at position p takes the embedding of token p+1 (zero at position 0) and the target's hidden state at p
  before its last norm, and drafts token p+2 by the target's output matrix;
- its own output, after its norm, takes the place of the target's state at the next depth.

The checkpoint is a folder with the layer and the biases; the target's files in it are links.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .heads import Cache, Elements, Head, known_elements
from .llama import DecoderLayer, Llama, RMSNorm, Shape, initialise, read_checkpoint, write_checkpoint

_FILE = "mtp.safetensors"
_LAYER = "model.mtp_layers.0."
_FROM_TARGET = ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


class MtpLayer(DecoderLayer):
    """A decoder layer over the projection of hidden state and embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.input_proj = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = (
            RMSNorm(shape.hidden_size, shape.rms_norm_eps) for _ in range(3)
        )

    def forward(  # type: ignore[override]
        self, embeds: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor, cache: Cache
    ) -> Tensor:
        """Normed outputs [B, N, H]; appends this pass's keys and values to `cache`."""
        x = self.input_proj(torch.cat((self.hidden_layernorm(hidden), self.token_layernorm(embeds)), dim=-1))
        q, k, v = self.self_attn.project(self.input_layernorm(x), angles)
        cache.append((k, v))
        keys, values = (torch.cat(part, dim=2) for part in zip(*cache, strict=True))
        x = x + self.self_attn.attend(q, keys, values, mask)
        return self.final_layernorm(x + self.mlp(self.post_attention_layernorm(x)))


class MtpHead(Head):
    """One MTP layer with the target's own embedding and output matrix, which are not trained."""

    def __init__(self, target: Llama) -> None:
        nn.Module.__init__(self)
        self.shape, self.parallel, self.name = replace(target.shape, num_hidden_layers=1), False, "mtp"
        self.aux_layers = (target.shape.num_hidden_layers,)
        self.layers = nn.ModuleList([MtpLayer(self.shape)])
        self.apply(initialise)
        self.layers[0].final_layernorm.load_state_dict(target.norm.state_dict())
        self.embed_tokens, self.lm_head, self.norm = target.embed_tokens, target.lm_head, nn.Identity()

    def forward(self, tokens: Tensor, aux: Tensor, extra: Elements, depths: int) -> list[tuple[Elements, Tensor]]:
        """As `Head.forward`, of the target's last hidden state: aux [B, T, H]."""
        del extra
        embeds = self.embed_tokens(tokens[:, 1:])
        embeds[:, 0] = 0
        return self._passes(known_elements(tokens.shape[1] - 1), embeds, aux[:, :-1], depths)


def save_mtp(head: MtpHead, target: Llama, folder: Path) -> None:
    """Write the checkpoint that vLLM loads as `MiMoForCausalLM`, beside the target's folder."""
    config = {  # of model type llama: of qwen2, transformers would read the tokenizer as Qwen's
        "architectures": ["MiMoForCausalLM"],
        **target.shape.hf_config(),
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
    }
    attention = head.layers[0].self_attn
    prefixes = [_LAYER, *(f"model.layers.{index}." for index in range(target.shape.num_hidden_layers))]
    biases = {
        f"{prefix}self_attn.{name}.bias": torch.zeros(getattr(attention, name).out_features)
        for prefix in prefixes
        for name in ("q_proj", "k_proj", "v_proj")
    }
    layer = {_LAYER + name: value for name, value in head.layers[0].state_dict().items()}
    write_checkpoint(folder, config, layer | biases, _FILE)
    for name in _FROM_TARGET:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path("..") / "target" / name)


def load_mtp(folder: Path, target: Llama) -> MtpHead:
    """Read what `save_mtp` wrote, in bf16."""
    head = MtpHead(target)
    *_, tensors = read_checkpoint(folder, _FILE)
    layer = {name.removeprefix(_LAYER): value for name, value in tensors.items() if name.startswith(_LAYER)}
    head.layers[0].load_state_dict({name: value for name, value in layer.items() if not name.endswith(".bias")})
    return head.to(torch.bfloat16).eval()

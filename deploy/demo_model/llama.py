"""The Llama decoder that target and heads share, written for training on a CPU.

Owns the arithmetic (RMSNorm, rotary attention, SwiGLU) and the names of its parameters, which are the
ones Hugging Face and vLLM load. Half-split ("neox") rotary layout, grouped-query attention, no biases.
Draws no random numbers besides torch's own initialisation.

Shapes: B rows, T tokens per row, H hidden size, V vocabulary size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

PAD_ID, BOS_ID, START_ID, EOS_ID, MASK_ID = range(5)
SPECIAL_TOKENS = ("<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|ptd_mask|>")


@dataclass(frozen=True)
class Shape:
    """Sizes of one decoder; the field names are those of a Hugging Face Llama config."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def hf_config(self) -> dict[str, object]:
        """The `config.json` fields that every Llama checkpoint of this shape carries."""
        return {
            "model_type": "llama",
            **asdict(self),
            "hidden_act": "silu",
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": BOS_ID,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "initializer_range": 0.02,
            "use_cache": True,
        }


def rotary_angles(shape: Shape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, head_dim / 2] for integer `positions` [T]."""
    half = shape.head_dim // 2
    frequency = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions.float()[:, None] * frequency[None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys [B, heads, T, head_dim]."""
    cos, sin = (a.to(x.dtype) for a in angles)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Grouped-query attention; `input_size` is 2H in a head's first layer, H elsewhere."""

    def __init__(self, shape: Shape, input_size: int) -> None:
        super().__init__()
        self.shape = shape
        width = shape.num_attention_heads * shape.head_dim
        kv_width = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(input_size, width, bias=False)
        self.k_proj = nn.Linear(input_size, kv_width, bias=False)
        self.v_proj = nn.Linear(input_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [B, heads, T, head_dim]."""
        rows, length, _ = x.shape
        q, k, v = (
            layer(x).view(rows, length, -1, self.shape.head_dim).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(self.q_norm(q), angles), rotate(self.k_norm(k), angles), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention output [B, T, H]; `mask` is True where a query may look, None is causal."""
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Self-attention over the T tokens of `x`."""
        return self.attend(*self.project(x, angles), mask)


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """A plain pre-norm Llama layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.hidden_size)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """Residual stream in, residual stream out."""
        x = x + self.self_attn(self.input_layernorm(x), angles, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The target: embedding, decoder layers, final norm, output matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.apply(initialise)

    def forward(self, tokens: Tensor, aux_layers: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """Logits [B, T, V], and the residual streams after `aux_layers` concatenated [B, T, n*H]."""
        angles = rotary_angles(self.shape, torch.arange(tokens.shape[1]))
        x = self.embed_tokens(tokens)
        aux: list[Tensor] = []
        for depth, layer in enumerate(self.layers, start=1):
            x = layer(x, angles)
            if depth in aux_layers:
                aux.append(x)
        return self.lm_head(self.norm(x)), torch.cat(aux, dim=-1) if aux else None


def initialise(module: nn.Module) -> None:
    """Normal weights of standard deviation 0.02, as in the published Llama configs."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str = "model.safetensors"
) -> None:
    """Write what Hugging Face and vLLM read: the configuration, and the weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    rounded = {name: value.to(torch.bfloat16).contiguous() for name, value in tensors.items()}
    save_file(rounded, folder / file, metadata={"format": "pt"})


def read_checkpoint(folder: Path, file: str = "model.safetensors") -> tuple[dict[str, Any], Shape, dict[str, Tensor]]:
    """Configuration, shape and weights of a folder of `write_checkpoint`."""
    config = json.loads((folder / "config.json").read_text())
    return config, Shape(**{name: config[name] for name in asdict(Shape())}), load_file(folder / file)

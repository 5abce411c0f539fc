"""A tiny target with Mamba2 layers (Nemotron-H) of random weights, whose text soon repeats itself."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY, HIDDEN, HEADS, HEAD, GROUPS, STATE, ATTENTION = 64, 64, 4, 16, 2, 16, 32


def make(folder: Path) -> None:
    """Write the target."""
    draw = torch.Generator().manual_seed(1)

    def normal(*sizes: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(*sizes, generator=draw) / (sizes[-1] ** 0.5 if len(sizes) == 2 else 1.0)

    inner, states = HEADS * HEAD, 2 * GROUPS * STATE
    tensors = {
        "embeddings.weight": torch.randn(VOCABULARY, HIDDEN, generator=draw),
        "norm_f.weight": torch.ones(HIDDEN),
    }
    for layer in (0, 2):
        tensors |= {
            f"layers.{layer}.mixer.{name}": tensor
            for name, tensor in {
                "in_proj.weight": normal(2 * inner + states + HEADS, HIDDEN),
                "conv1d.weight": normal(inner + states, 1, 4, scale=0.5),
                "conv1d.bias": normal(inner + states, scale=0.1),
                "A_log": torch.rand(HEADS, generator=draw),
                "D": normal(HEADS),
                "dt_bias": normal(HEADS, scale=0.1) - 2,
                "norm.weight": torch.ones(inner),
                "out_proj.weight": normal(HIDDEN, inner, scale=3.0),
            }.items()
        }
    for name, shape in {"q": (64, HIDDEN), "k": (32, HIDDEN), "v": (32, HIDDEN), "o": (HIDDEN, 64)}.items():
        tensors[f"layers.1.mixer.{name}_proj.weight"] = normal(*shape)
    tensors |= {f"layers.{layer}.norm.weight": torch.ones(HIDDEN) for layer in range(3)}
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M*M",
        "num_hidden_layers": 3,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": ATTENTION,
        "mamba_num_heads": HEADS,
        "mamba_head_dim": HEAD,
        "n_groups": GROUPS,
        "ssm_state_size": STATE,
        "conv_kernel": 4,
        "chunk_size": 8,
        "use_conv_bias": True,
        "use_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 512,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    whole = {f"backbone.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    whole["lm_head.weight"] = torch.randn(VOCABULARY, HIDDEN, generator=draw)
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})

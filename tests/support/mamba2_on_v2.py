"""A tiny target with a Mamba2 layer on model runner V2, with an n-gram drafter, while K changes at random.

Through `tests.support.interpreter`: `run("interpreter", "tests.support.mamba2_on_v2", KIND)`; "plain" is without
speculation. The weights are random, so the text depends on the recurrent state at every token; of its few kinds of
tokens, those that followed the last one before are often right. Every prompt is as long as a decode with K_max drafts:
vLLM sorts such a prompt before decodes without drafts, and Mamba's metadata would take these for prompts.

Decodes run the Triton kernels of a GPU, interpreted, in float32; prompts those of a CPU.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.config.mamba import MambaBackendEnum

from specpilot.engine_adapter.vllm import compat
from tests.support import hybrid_engine, hybrid_on_v2
from tests.support.recurrent_kernels import modules

VOCABULARY, HIDDEN, HEADS, SIZE, STATE, TAPS = hybrid_engine.VOCABULARY, 64, 4, 16, 16, 4
LIKELY = 8
"""Kinds of tokens that may follow; the others are never the likeliest."""
REQUESTS = 8


def make(folder: Path) -> None:
    """Write the target: a Mamba2 layer and one of attention."""
    draw = torch.Generator().manual_seed(0)

    def normal(*sizes: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*sizes, generator=draw) * scale

    inner, read = HEADS * SIZE, 2 * STATE
    head = torch.zeros(VOCABULARY, HIDDEN)
    head[1 : 1 + LIKELY] = normal(LIKELY, HIDDEN)
    tensors = {
        "backbone.embeddings.weight": normal(VOCABULARY, HIDDEN),
        "lm_head.weight": head,
        "backbone.norm_f.weight": torch.ones(HIDDEN),
        **{f"backbone.layers.{layer}.norm.weight": torch.ones(HIDDEN) for layer in (0, 1)},
        **{
            f"backbone.layers.0.mixer.{name}": tensor
            for name, tensor in {
                "in_proj.weight": normal(2 * inner + read + HEADS, HIDDEN, scale=HIDDEN**-0.5),
                "conv1d.weight": normal(inner + read, 1, TAPS, scale=0.5),
                "conv1d.bias": normal(inner + read, scale=0.1),
                "A_log": torch.zeros(HEADS),
                "D": torch.ones(HEADS),
                "dt_bias": torch.full((HEADS,), -2.0),
                "norm.weight": torch.ones(inner),
                "out_proj.weight": normal(HIDDEN, inner, scale=2 * inner**-0.5),
            }.items()
        },
        **{
            f"backbone.layers.1.mixer.{name}_proj.weight": normal(*sizes, scale=HIDDEN**-0.5)
            for name, sizes in {"q": (128, HIDDEN), "k": (64, HIDDEN), "v": (64, HIDDEN), "o": (HIDDEN, 128)}.items()
        },
    }
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "hybrid_override_pattern": "M*",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "mamba_num_heads": HEADS,
        "mamba_head_dim": SIZE,
        "ssm_state_size": STATE,
        "n_groups": 1,
        "conv_kernel": TAPS,
        "chunk_size": 16,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    hybrid_engine.save(folder / "target", config, tensors)


def use_kernels_of_a_gpu() -> None:
    """Let decodes run vLLM's Triton kernels."""
    layers = "vllm.model_executor.layers.mamba"
    layer = importlib.import_module(f"{layers}.mamba_mixer2")
    dispatch = importlib.import_module(f"{layers}.ops.ssu_dispatch")
    convolution, _ = modules(*(f"model_executor.layers.mamba.ops.{name}" for name in ("causal_conv1d", "mamba_ssm")))
    layer.causal_conv1d_update = convolution.causal_conv1d_update
    dispatch._BACKEND_REGISTRY[MambaBackendEnum.CPU] = dispatch.TritonSSUBackend


def main(kind: str) -> None:
    """Serve a few requests while K changes, and report."""
    compat.recurrent_faults = lambda *_, **__: []
    use_kernels_of_a_gpu()
    folder, k_max = Path(tempfile.mkdtemp()), hybrid_on_v2.K_MAX
    make(folder)
    ngram: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": k_max}
    ngram |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
    hybrid_on_v2.serve(kind, folder / "target", None if kind == "plain" else ngram, [1 + k_max] * REQUESTS, {})


if __name__ == "__main__":
    main(sys.argv[1])

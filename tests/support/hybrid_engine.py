"""A tiny target with a recurrent layer (gated delta net) and an EAGLE-3 head made by hand, while K changes at random.

`run("hybrid_engine", "plain")` and `run("hybrid_engine", "adapter")`, on model runner V1, also on versions of vLLM that
the adapter rejects for such targets. Finds the token ids of the replies; of "plain" also the gap between the two
likeliest tokens at each position; of "adapter" what was drafted and accepted.

The text depends on the recurrent state at every token, and half of its tokens repeat the one before. The layer's state
stores one vector for each token: when token t is read often enough, its vector makes the successor of t likelier than t
itself, and until then the vectors of earlier tokens make t likelier. All other layers add nothing. The head proposes
the last token again and again, so drafts of every length are accepted: a step without drafts after one of these is what
shows a stale state.

On a CPU these layers run in bfloat16, so where two tokens are nearly as likely the order of additions decides. And
their convolution keeps its input for a constant number of drafts: if a step verifies fewer tokens than the one before
accepted, it ends the engine. Here it reads the present token alone, so what it keeps does not matter, and it gets a
number that it takes. It is called so for steps of one length only; so one request runs at a time.
"""

import json
import math
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from vllm import SamplingParams

from specpilot.engine_adapter.vllm import compat
from tests.support.engine_program import finish, offer, replies, start
from tests.support.in_every_step import count

VOCABULARY, HIDDEN, HEAD, VALUE_HEADS = 64, 128, 128, 2
WRITTEN, KEPT = 0.1, 0.99
"""Shares of a token's vector that a step writes into the state, and of the state that the next step finds."""
K_MAX, REQUESTS, TOKENS = 5, 6, 60


def make(folder: Path, dtype: torch.dtype = torch.bfloat16, older: float = 0.0) -> None:
    """Write the target with its MTP layer, and an EAGLE-3 head; `older`: weights of older tokens in the convolution."""
    draw = torch.Generator().manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=draw)

    embedding = normal(VOCABULARY, HIDDEN)
    embedding[:, 0] = 3.0  # what a constant is made of
    read = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
    key, value = 2 * normal(HEAD, HIDDEN) / HIDDEN**0.5, 2 * normal(HEAD * VALUE_HEADS, HIDDEN) / HIDDEN**0.5
    key[:, 0] = value[:, 0] = 0
    gate, written = torch.zeros(HEAD * VALUE_HEADS, HIDDEN), torch.zeros(2 * VALUE_HEADS, HIDDEN)
    gate[:, 0], written[:VALUE_HEADS, 0] = 1.0, math.log(WRITTEN / (1 - WRITTEN)) / float(read[0, 0])
    vectors = functional.silu(read @ value.T).view(VOCABULARY, VALUE_HEADS, HEAD)
    vectors = (vectors / vectors.pow(2).mean(-1, keepdim=True).sqrt()).flatten(1) * functional.silu(read @ gate.T)
    successors = embedding[torch.randperm(VOCABULARY, generator=draw)] - embedding
    out = torch.linalg.lstsq(vectors, successors).solution.T
    bias = torch.ones(VALUE_HEADS)
    zeros, tensors = torch.zeros, {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
    tensors |= {
        "model.layers.0.linear_attn." + name: tensor
        for name, tensor in {
            "in_proj_qkvz.weight": torch.cat([key, key, value, gate]),
            "in_proj_ba.weight": written,
            "conv1d.weight": older * normal(4 * HEAD, 1, 4) + functional.one_hot(torch.tensor(3), 4),
            "A_log": (-math.log(KEPT) / functional.softplus(bias)).log(),
            "dt_bias": bias,
            "norm.weight": torch.ones(HEAD),
            "out_proj.weight": out.contiguous(),
        }.items()
    }
    attention = {"q": 4 * 64, "k": 64, "v": 64}
    tensors |= {
        f"model.layers.1.self_attn.{name}_proj.weight": normal(size, HIDDEN) for name, size in attention.items()
    }
    tensors |= {f"model.layers.1.self_attn.{name}_norm.weight": zeros(64) for name in "qk"}
    tensors["model.layers.1.self_attn.o_proj.weight"] = zeros(HIDDEN, 2 * 64)
    tensors["model.norm.weight"] = zeros(HIDDEN)
    for of in ("model.layers.0", "model.layers.1", "mtp.layers.0"):
        for expert in ("experts.0", "experts.1", "shared_expert"):
            tensors |= {f"{of}.mlp.{expert}.{name}_proj.weight": zeros(64, HIDDEN) for name in ("gate", "up")}
            tensors[f"{of}.mlp.{expert}.down_proj.weight"] = zeros(HIDDEN, 64)
        tensors |= {f"{of}.mlp.gate.weight": normal(2, HIDDEN), f"{of}.mlp.shared_expert_gate.weight": zeros(1, HIDDEN)}
    names = ("input_layernorm", "post_attention_layernorm")
    tensors |= {f"model.layers.{layer}.{name}.weight": zeros(HIDDEN) for layer in (0, 1) for name in names}
    tensors |= {
        "mtp." + name: tensor
        for name, tensor in {
            "fc.weight": torch.eye(HIDDEN, 2 * HIDDEN),  # the present token alone
            **{f"{name}.weight": zeros(HIDDEN) for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")},
            **{f"layers.0.{name}.weight": zeros(HIDDEN) for name in names},
            **{f"layers.0.self_attn.{name}_norm.weight": zeros(64) for name in "qk"},
            **{f"layers.0.self_attn.{name}_proj.weight": normal(size, HIDDEN) for name, size in attention.items()},
            "layers.0.self_attn.o_proj.weight": zeros(HIDDEN, 2 * 64),
        }.items()
    }
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    target = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": HEAD,
        "linear_value_head_dim": HEAD,
        "linear_conv_kernel_dim": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    }
    save(folder / "target", shape | target, tensors)
    layer = {
        f"self_attn.{name}_proj.weight": zeros(size // (1 + (name == "q")), 2 * HIDDEN)
        for name, size in attention.items()
    }
    layer |= {"self_attn.o_proj.weight": zeros(HIDDEN, 2 * 64), "mlp.down_proj.weight": zeros(HIDDEN, 64)}
    layer |= {f"mlp.{name}_proj.weight": zeros(64, HIDDEN) for name in ("gate", "up")}
    layer |= {f"{name}.weight": torch.ones(HIDDEN) for name in (*names, "hidden_norm")}
    head = {f"layers.0.{name}": tensor for name, tensor in layer.items()} | {
        "embed_tokens.weight": embedding.clone(),
        "lm_head.weight": embedding.clone(),
        "fc.weight": torch.eye(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    reads = {"eagle_aux_hidden_state_layer_ids": [2]}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": HIDDEN,
        "num_aux_hidden_states": 1,
        "eagle_config": reads | {"use_aux_hidden_state": True},
    }
    save(folder / "head", shape | config | reads, head)


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a model's files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.to(getattr(torch, config["torch_dtype"])) for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def take_any_number() -> None:
    """Let the convolution take any number of accepted tokens."""
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention  # noqa: PLC0415 - another program has no CPU's

    update = gdn_attention._causal_conv1d_update_cpu

    def update_at_most(*, x: Tensor, num_accepted_tokens: Tensor | None = None, **more: Any) -> Tensor:
        most = None if num_accepted_tokens is None else num_accepted_tokens.clamp(max=x.size(1))
        return update(x=x, num_accepted_tokens=most, **more)

    gdn_attention._causal_conv1d_update_cpu = update_at_most


def main(kind: str) -> None:
    """Serve a few requests while K changes, and report."""
    compat.recurrent_faults = lambda *_, **__: []
    take_any_number()
    folder = Path(tempfile.mkdtemp())
    make(folder)
    head = {"method": "eagle3", "model": str(folder / "head"), "num_speculative_tokens": K_MAX}
    llm = start(
        None if kind == "plain" else head,
        model=str(folder / "target"),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=1,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
    )
    engine, seen, gaps = llm.llm_engine, Counter[str](), dict[str, list[float]]()
    scheduler, rng = engine.engine_core.engine_core.scheduler, random.Random(3)
    control = getattr(scheduler, "control", None)
    if control is not None:
        count(scheduler, seen)
    for number in range(REQUESTS):
        sampling = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=2 if kind == "plain" else None
        )
        prompt = {"prompt_token_ids": [rng.randrange(1, VOCABULARY) for _ in range(4)]}
        engine.add_request(str(number), prompt, sampling)

    def change(_: int) -> None:
        if control is not None:
            offer(control, {"default": rng.choice([0, 0, *range(K_MAX + 1)])})

    def note(output: Any) -> None:
        for choice in output.outputs:
            two = [
                sorted((item.logprob for item in items.values()), reverse=True)[:2] for items in choice.logprobs or ()
            ]
            gaps[output.request_id] = [first - second for first, second in two]

    finish({"ids": replies(engine, change, note), "gaps": gaps, "seen": seen})


if __name__ == "__main__":
    main(sys.argv[1])

"""A tiny target with a recurrent layer on model runner V2, while K changes at random.

Through `tests.support.interpreter`: `run("interpreter", "tests.support.hybrid_on_v2", KIND)`.

- "plain": without speculation;
- "mtp": with the MTP head; K by class at random, so that a step has decodes of several lengths;
- "eagle3": the same with a head that is left out and catches up;
- "graphs": with the MTP head, one K for all at random, and FULL graphs that call again what they were captured from;
- "graphs in lockstep": the same as a data-parallel rank that makes every pass together with others.

The target is that of `tests.support.hybrid_engine`: its text depends on the recurrent state at every token, and
the heads propose the last token again and again, so drafts of every length are accepted. But here the layer's
convolution reads four tokens, and it runs the Triton kernels of a GPU, interpreted, in float32. On a CPU vLLM has other
kernels, whose convolution takes one number of drafts. The kernels that read prompts cannot be interpreted: in their
places are the CPU's convolution, and a loop over the tokens.
"""

import importlib
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams

from specpilot.engine_adapter.vllm import compat, config_facts, data_parallel, engine_facts
from tests.support import hybrid_engine, replayed_graphs
from tests.support.engine_program import finish, offer, replies, start
from tests.support.in_every_step import count
from tests.support.recurrent_kernels import modules
from tests.support.stack import CLASSES

K_MAX, REQUESTS, TOKENS = 3, 6, 30
OPS = "vllm.model_executor.layers.mamba.ops"


def use_kernels_of_a_gpu() -> None:
    """Let the recurrent layer run vLLM's Triton kernels; without speculation not one for single tokens alone."""
    os.environ["VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE"] = "0"
    [convolution] = modules("model_executor.layers.mamba.ops.causal_conv1d")
    layer = importlib.import_module("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn")
    layer.causal_conv1d_update = convolution.causal_conv1d_update
    layer.causal_conv1d_fn = importlib.import_module(f"{OPS}.cpu.causal_conv1d").causal_conv1d_fn_cpu
    layer.QwenGatedDeltaNetAttention.forward_cpu = layer.QwenGatedDeltaNetAttention.forward_cuda
    layer.ChunkGatedDeltaRule.forward_native = read_prompts
    layer.QwenGatedDeltaNetAttention._warmup_prefill_kernels = lambda *_: None  # of the kernel that is not there


def read_prompts(
    _: Any, *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, **more: Any
) -> tuple[Tensor, Tensor]:
    """`ChunkGatedDeltaRule.forward_native`, token by token."""
    repeated = v.shape[2] // q.shape[2]
    q, k = (each[0].repeat_interleave(repeated, dim=1) for each in (q * q.shape[-1] ** -0.5, k))
    found, states = torch.empty_like(v), initial_state.clone()
    for number, (begin, end) in enumerate(pairwise(more["cu_seqlens"].tolist())):
        state = states[number]
        for token in range(begin, end):
            state *= g[0, token].exp()[:, None, None]
            new = (v[0, token] - torch.einsum("hvk,hk->hv", state, k[token])) * beta[0, token][:, None]
            state += torch.einsum("hv,hk->hvk", new, k[token])
            found[0, token] = torch.einsum("hvk,hk->hv", state, q[token])
    return found, states


SPECULATION: dict[str, dict[str, Any]] = {
    "mtp": {"method": "mtp"},
    "eagle3": {"method": "eagle3"},
    "graphs": {"method": "mtp"},
}


def main(kind: str) -> None:
    """Serve a few requests while K changes, and report."""
    compat.recurrent_faults = lambda *_, **__: []
    use_kernels_of_a_gpu()
    if kind.endswith("in lockstep"):
        data_parallel.in_lockstep = engine_facts.in_lockstep = lambda _: True
        config_facts.ConfigFacts.in_lockstep = True  # type: ignore[method-assign, assignment]
        kind = "graphs"
    folder, options = Path(tempfile.mkdtemp()), dict[str, Any]()
    hybrid_engine.make(folder, torch.float32, older=0.2)
    speculative = SPECULATION[kind] | {"num_speculative_tokens": K_MAX} if kind in SPECULATION else None
    if speculative is not None and kind == "eagle3":
        speculative["model"] = str(folder / "head")
    if kind == "graphs":
        replayed_graphs.install()
        options = {"enforce_eager": False, "compilation_config": {"mode": 0}}
    serve(kind, folder / "target", speculative, [4 + number for number in range(REQUESTS)], options)


def serve(
    kind: str, model: Path, speculative: dict[str, Any] | None, prompts: Sequence[int], options: dict[str, Any]
) -> None:
    """Serve requests with `prompts` of so many tokens, and report; `kind` "graphs" replays FULL graphs."""
    llm = start(
        speculative,
        model=str(model),
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        **options,
    )
    engine, seen = llm.llm_engine, Counter[str]()
    core, rng = engine.engine_core.engine_core, random.Random(3)
    control = getattr(core.scheduler, "control", None)
    if control is not None:
        count(core.scheduler, seen)
    if kind == "graphs":
        replayed_graphs.capture_all(core.model_executor.driver_worker.worker.model_runner)
    for number, length in enumerate(prompts):
        extra = {"traffic_class": CLASSES[number % len(CLASSES)]}
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, extra_args=extra)
        prompt = {"prompt_token_ids": [rng.randrange(1, hybrid_engine.VOCABULARY) for _ in range(length)]}
        engine.add_request(str(number), prompt, sampling)

    def change(_: int) -> None:
        if control is not None:
            k = [rng.choice([0, *range(K_MAX + 1)]) for _ in ("default", *CLASSES)]
            offer(control, dict(zip(("default", *CLASSES), k if kind != "graphs" else k[:1] * len(k), strict=True)))

    finish({"ids": replies(engine, change), "seen": seen, "replays": replayed_graphs.REPLAYS})


if __name__ == "__main__":
    main(sys.argv[1])

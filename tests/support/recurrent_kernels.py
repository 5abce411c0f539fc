"""vLLM's Triton kernels of recurrent layers, interpreted: steps in which requests verify different numbers of drafts.

`run("interpreter", "tests.support.recurrent_kernels")`. Some sequences are read in steps of 1 to 1 + K_MAX tokens each;
a part of them is accepted, at random, and the tokens behind it are not those that follow. Finds by kernel the number of
steps, and the largest difference from reading the sequences token by token.

- "convolution": `causal_conv1d_update`, of gated delta nets and Mamba2;
- "delta rule": `fused_sigmoid_gating_delta_rule_update`, of gated delta nets;
- "Mamba2": `selective_state_update`.
"""

import importlib
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from vllm.platforms.cpu import CpuPlatform

from tests.support.engine_program import finish

K_MAX, SEQUENCES, TOKENS = 3, 3, 40
HEADS, SIZE, STATE = 2, 16, 8
CHANNELS, TAPS = 32, 4


def modules(*names: str) -> list[Any]:
    """Import modules of vLLM's layers with the Triton kernels, which on a CPU others replace."""
    driver.set_active(SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="cpu", arch=0)))
    torch.accelerator.device_index = lambda _: nullcontext()  # type: ignore[assignment,misc,return-value]
    tune, is_cpu = Autotuner.__init__, CpuPlatform.is_cpu

    def take_the_first(self: Any, *args: Any, **kwargs: Any) -> None:
        tune(self, *args, **kwargs)
        del self.configs[1:]

    Autotuner.__init__ = take_the_first
    CpuPlatform.is_cpu = lambda _: False
    for name in names:
        sys.modules.pop(f"vllm.{name}", None)
    found = [importlib.import_module(f"vllm.{name}") for name in names]
    CpuPlatform.is_cpu = is_cpu
    return found


def slots() -> Tensor:
    """The states of each sequence, one for each token of a step; the first one is nobody's."""
    return 1 + torch.arange(SEQUENCES * (1 + K_MAX), dtype=torch.int32).view(SEQUENCES, -1)


def compared(inputs: list[Tensor], expected: Tensor, step: Callable[[list[Tensor], Tensor, Tensor], Tensor]) -> Any:
    """Read `inputs` [sequences, tokens, ...] in random steps of ragged lengths; compare with `expected`.

    `step` gets its inputs, the begins of the sequences' parts, and how many tokens each accepted in the last step.
    """
    rng, steps, largest = random.Random(1), 0, 0.0
    at, accepted = [0] * SEQUENCES, [1] * SEQUENCES
    while max(at) + K_MAX < TOKENS:
        lengths = [1 + rng.randrange(K_MAX + 1) for _ in at]
        right = [rng.randrange(1, length + 1) for length in lengths]
        parts = [[each[n, at[n] : at[n] + lengths[n]].clone() for n in range(SEQUENCES)] for each in inputs]
        for part in parts:
            for n, own in enumerate(part):
                own[right[n] :] += 3
        begins = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        out = step([torch.cat(part) for part in parts], begins, torch.tensor(accepted, dtype=torch.int32))
        for n in range(SEQUENCES):
            own = out[begins[n] : begins[n] + right[n]]
            largest = max(largest, float((own - expected[n, at[n] : at[n] + right[n]]).abs().max()))
            at[n] += right[n]
        accepted, steps = right, steps + 1
    return {"steps": steps, "largest": largest}


def convolution(kernel: Callable[..., Tensor]) -> Any:
    weight, tokens = torch.randn(CHANNELS, TAPS), torch.randn(SEQUENCES, TOKENS, CHANNELS)
    states = torch.zeros(1 + SEQUENCES * (1 + K_MAX), TAPS - 1 + K_MAX, CHANNELS).transpose(1, 2)
    padded = functional.pad(tokens.transpose(1, 2), (TAPS - 1, 0))
    expected = functional.silu(functional.conv1d(padded, weight[:, None], groups=CHANNELS).transpose(1, 2))

    def step(inputs: list[Tensor], begins: Tensor, accepted: Tensor) -> Tensor:
        return kernel(
            inputs[0], states, weight, None, "silu", conv_state_indices=slots()[:, 0].contiguous(),
            num_accepted_tokens=accepted, query_start_loc=begins, max_query_len=1 + K_MAX, validate_data=False,
        )  # fmt: skip

    return compared([tokens], expected, step)


def delta_rule(kernel: Callable[..., tuple[Tensor, Tensor]]) -> Any:
    q, k, v = (torch.randn(SEQUENCES, TOKENS, HEADS, SIZE) for _ in range(3))
    a, b = (torch.randn(SEQUENCES, TOKENS, HEADS) for _ in range(2))
    rate, bias = torch.rand(HEADS), torch.rand(HEADS)
    states = torch.zeros(1 + SEQUENCES * (1 + K_MAX), HEADS, SIZE, SIZE)
    expected = torch.empty_like(v)
    for n in range(SEQUENCES):
        state = torch.zeros(HEADS, SIZE, SIZE)
        for t in range(TOKENS):
            query, key = (functional.normalize(each[n, t], dim=-1) for each in (q, k))
            state *= (-rate.exp() * functional.softplus(a[n, t] + bias)).exp()[:, None, None]
            new = (v[n, t] - torch.einsum("hvk,hk->hv", state, key)) * b[n, t].sigmoid()[:, None]
            state += torch.einsum("hv,hk->hvk", new, key)
            expected[n, t] = torch.einsum("hvk,hk->hv", state, query) * SIZE**-0.5

    def step(inputs: list[Tensor], begins: Tensor, accepted: Tensor) -> Tensor:
        query, key, value, alpha, beta = inputs
        out, _ = kernel(
            A_log=rate, a=alpha, b=beta, dt_bias=bias, q=query[None], k=key[None], v=value[None], initial_state=states,
            inplace_final_state=True, cu_seqlens=begins, ssm_state_indices=slots(), num_accepted_tokens=accepted,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        return out[0]

    return compared([q, k, v, a, b], expected, step)


def mamba2(kernel: Callable[..., None]) -> Any:
    x = torch.randn(SEQUENCES, TOKENS, HEADS, SIZE)
    dt = torch.randn(SEQUENCES, TOKENS, HEADS)
    read, written = (torch.randn(SEQUENCES, TOKENS, 1, STATE) for _ in range(2))
    rate, skipped, bias = -torch.rand(HEADS), torch.randn(HEADS), torch.rand(HEADS)
    states = torch.zeros(1 + SEQUENCES * (1 + K_MAX), HEADS, SIZE, STATE)
    expected = torch.empty_like(x)
    for n in range(SEQUENCES):
        state = torch.zeros(HEADS, SIZE, STATE)
        for t in range(TOKENS):
            time = functional.softplus(dt[n, t] + bias)
            state *= (rate * time).exp()[:, None, None]
            state += torch.einsum("h,hd,s->hds", time, x[n, t], written[n, t, 0])
            expected[n, t] = state @ read[n, t, 0] + skipped[:, None] * x[n, t]

    def step(inputs: list[Tensor], begins: Tensor, accepted: Tensor) -> Tensor:
        value, time, reads, writes = inputs
        out = torch.empty_like(value)
        kernel(
            states, value, time[..., None].expand(-1, -1, SIZE), rate[:, None, None].expand(-1, SIZE, STATE), writes,
            reads, skipped[:, None].expand(-1, SIZE), bias[:, None].expand(-1, SIZE), dt_softplus=True,
            state_batch_indices=slots(), dst_state_batch_indices=slots(), out=out, num_accepted_tokens=accepted,
            cu_seqlens=begins,
        )  # fmt: skip
        return out

    return compared([x, dt, read, written], expected, step)


def main() -> None:
    """Compare the kernels, and report."""
    torch.manual_seed(0)
    layers = "model_executor.layers.mamba.ops"
    conv, ssm, delta = modules(
        f"{layers}.causal_conv1d", f"{layers}.mamba_ssm", "third_party.flash_linear_attention.ops"
    )
    found = {
        "convolution": convolution(conv.causal_conv1d_update),
        "delta rule": delta_rule(delta.fused_sigmoid_gating_delta_rule_update),
        "Mamba2": mamba2(ssm.selective_state_update),
    }
    finish(found)


if __name__ == "__main__":
    main()

"""Compares the adapter's operations on tensors on this machine's accelerator with those on its CPU.

torch is set to raise when an operation waits for the device. Only the comparison of batches needs vLLM, for its record
of a batch; the others need torch alone. Run as a program it prints one JSON object.
"""

import json
import random
import sys
from typing import Any

import torch

from specpilot.engine_adapter.vllm import rows as rows_module
from specpilot.engine_adapter.vllm.rows import Rows

_ROUNDS = 300
_WIDTH, _ROOM = 24, 96


def main() -> None:
    """Compare, and print the counts of comparisons."""
    has_device = torch.cuda.is_available()
    device = torch.device("cuda" if has_device else "cpu")
    report: dict[str, Any] = {"device": str(device), "watched": has_device, "rows": _rows(device)}
    try:
        report["subset"] = _subset(device)
    except ImportError as error:
        report["subset_skipped"] = f"vLLM cannot be imported: {error}"
    sys.stdout.write("\n" + json.dumps(report) + "\n")


class _Watched:
    """A context in which an operation that waits for the device raises."""

    def __init__(self, device: torch.device) -> None:
        self._is_on = device.type == "cuda"

    def __enter__(self) -> None:
        if self._is_on:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        if self._is_on:
            torch.cuda.set_sync_debug_mode("default")


def _rows(device: torch.device) -> int:
    """Keep, drop and read the same rows on both; return the number of equal readings."""
    rng, host = random.Random(5), torch.device("cpu")  # noqa: S311 - a reproducible load
    both = [Rows(_ROOM, _WIDTH, torch.float32, place, can_hold=hold) for place, hold in ((device, False), (host, True))]
    names, compared = [str(number) for number in range(8)], 0
    for _ in range(_ROUNDS):
        batch = rng.sample(names, rng.randint(1, 8))
        states, tokens = torch.randn(len(batch), _WIDTH), torch.randint(0, 1000, (len(batch),), dtype=torch.int32)
        inputs = states.to(device), tokens.to(device)
        ended = [name for name in names if rng.random() < 0.05]  # noqa: PLR2004 - one in twenty
        with _Watched(device):
            both[0].add(batch, [inputs[0][:, :8], inputs[0][:, 8:]], inputs[1], batch)
            both[0].forget(ended)
            indices = rows_module.indices(list(range(both[0].used)), device)
            states_read, tokens_read = both[0].states(indices), both[0].tokens()
        both[1].add(batch, [states[:, :8], states[:, 8:]], tokens, batch)
        both[1].forget(ended)
        assert both[0].by_request() == both[1].by_request()
        for rows in both[0].by_request().values():
            expected = both[1].states(torch.tensor(rows)), both[1].tokens()[torch.tensor(rows)]
            assert torch.equal(states_read.cpu()[rows], expected[0])
            assert torch.equal(tokens_read.cpu()[rows], expected[1])
            compared += 1
    return compared


def _subset(device: torch.device) -> int:
    """Cut the same batches on both; return the number of equal ones."""
    from specpilot.engine_adapter.vllm.v1.subset import chosen, spread  # noqa: PLC0415 - imports vLLM

    rng, compared = random.Random(7), 0  # noqa: S311 - a reproducible load
    for _ in range(_ROUNDS // 10):
        lengths = [rng.choice([1, 1, 8, rng.randint(2, 30)]) for _ in range(rng.randint(2, 12))]
        places = sorted(rng.sample(range(len(lengths)), rng.randint(1, len(lengths))))
        host = _arguments(lengths, torch.device("cpu"))
        inputs = _arguments(lengths, device)
        with _Watched(device):
            cut, there = chosen(inputs, places, device)
            drafts = spread(cut["next_token_ids"].unsqueeze(1), there, len(lengths))
        expected, _ = chosen(host, places, torch.device("cpu"))
        for name in ("target_token_ids", "target_positions", "target_hidden_states", "next_token_ids"):
            assert torch.equal(cut[name].cpu(), expected[name]), name
        for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
            of = [getattr(item["common_attn_metadata"], name).cpu() for item in (cut, expected)]
            assert torch.equal(*of), name
        assert torch.equal(drafts.cpu()[places, 0], host["next_token_ids"][places])
        compared += 1
    return compared


def _arguments(lengths: list[int], device: torch.device) -> dict[str, Any]:
    """Return vLLM's arguments to its drafter in a step of such requests; each number identifies its request."""
    from types import SimpleNamespace  # noqa: PLC0415 - beside vLLM's

    from vllm.v1.attention.backend import CommonAttentionMetadata  # noqa: PLC0415 - the rest needs torch alone

    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    count = sum(lengths)
    numbers, sequences = torch.arange(count), torch.tensor(lengths, dtype=torch.int32) + 50
    metadata = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=sequences.to(device),
        seq_lens_cpu_upper_bound=sequences + 2,
        num_reqs=len(lengths),
        num_actual_tokens=count,
        max_query_len=max(lengths),
        max_seq_len=int(sequences.max()) + 2,
        block_table_tensor=torch.arange(4 * len(lengths), dtype=torch.int32).view(-1, 4).to(device),
        slot_mapping=(numbers + 1000).to(device),
        causal=True,
    )
    return {
        "target_token_ids": numbers.int().to(device),
        "target_positions": (numbers + 7).to(device),
        "target_hidden_states": numbers.float().unsqueeze(1).repeat(1, 4).to(device),
        "next_token_ids": (torch.arange(len(lengths)) + 5).to(device),
        "token_indices_to_sample": None,
        "common_attn_metadata": metadata,
        "sampling_metadata": SimpleNamespace(temperature=None),
    }


if __name__ == "__main__":
    main()

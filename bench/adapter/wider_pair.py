"""A wider model of a small one's shape, to measure the adapter's cost when a step takes longer.

The weights are untrained. The time of a step at K = 0 or at a constant K does not depend on them. Only acceptance does:
it is nearly 0.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"
_SCALED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "target_hidden_size")
_SPREAD = 0.02


def widen(model: Path, times: int, out: Path) -> Path:
    """Write to `out` a model `times` as wide as the Llama-like one in the folder `model`; return `out`.

    There are more heads of the same size; layers and vocabulary stay.
    """
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    kept = {1, config["vocab_size"], config.get("draft_vocab_size")}
    config |= {name: times * config[name] for name in _SCALED if name in config}
    torch.manual_seed(0)
    with safe_open(model / WEIGHTS, framework="pt") as weights:
        tensors = {name: _wide(weights.get_tensor(name), times, kept) for name in weights.keys()}  # noqa: SIM118 - no mapping
    out.mkdir(parents=True)
    for file in model.iterdir():
        if file.is_file() and file.name != WEIGHTS:
            shutil.copy(file, out)
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / WEIGHTS)
    return out


def _wide(tensor: torch.Tensor, times: int, kept: Iterable[int | None]) -> torch.Tensor:
    """Return a tensor of `tensor`'s kind in which every dimension is `times` as long, except those in `kept`."""
    shape = [size if size in kept else times * size for size in tensor.shape]
    if not tensor.is_floating_point():
        return tensor
    if len(shape) == 1:  # the scales of norms
        return torch.ones(shape, dtype=tensor.dtype)
    return torch.randn(shape, dtype=torch.float32).mul_(_SPREAD).to(tensor.dtype)

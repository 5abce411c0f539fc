"""Model folders: reading a small one, writing a large one in shards by several threads."""

import json
import math
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from specpilot.bench.inflate.models import Tensor
from specpilot.bench.inflate.number_format import BYTES, Array
from specpilot.policy.text_files import read_text

CONFIG, WEIGHTS = "config.json", ".safetensors"
SHARD_BYTES = 4 << 30
_PIECE_BYTES = 64 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's configuration; raises `OSError` and `ValueError`."""
    return dict(json.loads(read_text(folder / CONFIG)))


def read_tensors(folder: Path) -> dict[str, Array]:
    """Return a model's tensors by name; floating-point numbers as float32."""
    from safetensors import safe_open  # noqa: PLC0415 - loads torch

    tensors: dict[str, Array] = {}
    for path in sorted(folder.glob(f"*{WEIGHTS}")):
        with safe_open(path, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                value = weights.get_tensor(name)
                tensors[name] = (value.float() if value.is_floating_point() else value).numpy()
    return tensors


def size_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of the tensors."""
    return sum(_bytes(item) for item in tensors)


def write_model(small: Path, out: Path, config: Mapping[str, Any], tensors: Sequence[Tensor], threads: int) -> None:
    """Write a model to `out`: its tensors, its configuration, and the rest of the `small` model's files."""
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob(f"*{WEIGHTS}*"):
        stale.unlink()
    for path in small.iterdir():
        if path.is_file() and WEIGHTS not in path.name and path.name != CONFIG:
            shutil.copyfile(path, out / path.name)
    _write_shards(out, _shards(tensors), threads)
    (out / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _shards(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    room = SHARD_BYTES
    for item in tensors:
        if shards[-1] and _bytes(item) > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(item)
        room -= _bytes(item)
    return shards


def _write_shards(out: Path, shards: Sequence[Sequence[Tensor]], threads: int) -> None:
    names = ["model" + WEIGHTS]
    if len(shards) > 1:
        names = [f"model-{number + 1:05}-of-{len(shards):05}{WEIGHTS}" for number in range(len(shards))]
        weight_map = {item.name: name for name, shard in zip(names, shards, strict=True) for item in shard}
        total = sum(size_bytes(shard) for shard in shards)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    jobs: list[tuple[int, int, Tensor]] = []
    files: list[int] = []
    try:
        for name, shard in zip(names, shards, strict=True):
            file = os.open(out / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            files.append(file)
            jobs += [(file, at, item) for at, item in _begin(file, shard)]
        for _, _, item in jobs:
            if hasattr(item.make, "cache_info"):
                item.make()  # shared tensors are made before the threads use them
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_put, sorted(jobs, key=lambda job: -_bytes(job[2]))))
    finally:
        for file in files:
            os.close(file)


def _begin(file: int, shard: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    """Write a file's header; return the offset of each tensor."""
    at, header = 0, dict[str, Any](__metadata__={"format": "pt"})
    for item in shard:
        header[item.name] = {
            "dtype": item.code,
            "shape": list(item.shape),
            "data_offsets": [at, at + _bytes(item)],
        }
        at += _bytes(item)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    os.pwrite(file, struct.pack("<Q", len(text)) + text, 0)
    os.ftruncate(file, begin + at)
    return [(begin + header[item.name]["data_offsets"][0], item) for item in shard]


def _put(job: tuple[int, int, Tensor]) -> None:
    file, at, item = job
    made = item.make()
    assert made.shape == item.shape, (item.name, made.shape, item.shape)
    data, written = np.ascontiguousarray(made).reshape(-1).view(np.uint8).data, 0
    while written < len(data):
        written += os.pwrite(file, data[written : written + _PIECE_BYTES], at + written)


def _bytes(item: Tensor) -> int:
    return BYTES[item.code] * math.prod(item.shape)

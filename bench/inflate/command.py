"""`specpilot bench inflate`: a pair of a real model's size that writes the demo pair's text, without a download.

The large target computes the same as the small one (in float32 token for token; in bfloat16 sums are rounded in another
order), and so do its draft heads, so that drafts are accepted as often. Steps take as long as those of a trained model
of that shape. So the cost and the gain of speculation can be measured on any GPU.
"""

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.inflate import files
from specpilot.bench.inflate.layout import Layout, LayoutError, head_dim
from specpilot.bench.inflate.matrices import Filler, Matrices
from specpilot.bench.inflate.models import Tensor, head_tensors, target_tensors
from specpilot.bench.inflate.number_format import INT64, NumberFormat
from specpilot.bench.inflate.shapes import SHAPES, Shape
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench inflate"
TARGET, P_EAGLE, EAGLE_3 = "target", "peagle", "eagle3"
"""The output folders."""


class InflateSettings(ProgramSettings):
    """Write a target and draft heads of a real model's size that behave as a small pair does."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_INFLATE_")

    shape: str = Field(default="8b", description=f"size of the target: {', '.join(SHAPES)}")
    out: Path = Field(description=f"folder to write {TARGET}, {P_EAGLE} and {EAGLE_3} to")
    target: Path = Field(default=DEMO_MODEL / TARGET, description="the small target model")
    peagle: Path | None = Field(default=DEMO_MODEL / P_EAGLE, description="its P-EAGLE head")
    eagle3: Path | None = Field(default=None, description="its EAGLE-3 head (none)")
    dtype: str = Field(default="bfloat16", pattern="^(bfloat16|float32)$", description="number format of the weights")
    head_layers: int = Field(default=4, ge=1, description="layers of the P-EAGLE head: published ones have 4")
    draft_vocabulary: int | None = Field(
        default=None, ge=1, description="vocabulary of the heads, with a table to the target's (the target's)"
    )


def main(arguments: Sequence[str]) -> None:
    """Write the pair and print its size."""
    settings = load(InflateSettings, PROGRAM, arguments)
    if settings.shape not in SHAPES:
        fail(PROGRAM, f"--shape: {settings.shape!r} is none of {', '.join(SHAPES)}")
    shape, numbers = SHAPES[settings.shape], NumberFormat(settings.dtype)
    began = time.monotonic()
    filler = Filler(numbers)
    models: list[tuple[Path, Path, dict[str, Any], list[Tensor], Layout]] = []
    target: Layout | None = None
    for flag, folder in ((TARGET, settings.target), (P_EAGLE, settings.peagle), (EAGLE_3, settings.eagle3)):
        if folder is None:
            continue
        if folder.resolve() == (settings.out / flag).resolve():
            fail(PROGRAM, f"--out: {settings.out / flag} is the small model itself; name another folder")
        small = _config(flag, folder)
        layers = shape.layers if flag == TARGET else small["num_hidden_layers"]
        if flag == P_EAGLE:
            layers = max(layers, settings.head_layers)
        large = enlarged(small, shape, layers, numbers)
        try:
            layout = Layout(small, large)
            matrices = Matrices(layout, numbers, filler, files.read_tensors(folder))
            large["rms_norm_eps"] = layout.epsilon
            if target is None:
                target = layout
                tensors = target_tensors(matrices, layers, shape.vocabulary)
            else:
                drafts, least = settings.draft_vocabulary or shape.vocabulary, small.get("draft_vocab_size", 1)
                if not least <= drafts <= shape.vocabulary:
                    fail(PROGRAM, f"--draft-vocabulary: is {drafts}; name {least} to {shape.vocabulary}")
                large |= {"draft_vocab_size": drafts, "target_hidden_size": shape.hidden}
                tensors = head_tensors(matrices, target, layers, shape.vocabulary, drafts)
        except LayoutError as error:
            fail(PROGRAM, f"--{flag} {folder}: {error}; name another model or another --shape")
        models.append((folder, settings.out / flag, large, tensors, layout))
    _check_room(settings.out, sum(files.size_bytes(tensors) for *_, tensors, _ in models))
    for folder, out, large, tensors, layout in models:
        files.write_model(folder, out, large, tensors, len(os.sched_getaffinity(0)))
        _say(out, tensors, layout)
    sys.stdout.write(f"written in {time.monotonic() - began:.0f} s\n")


def enlarged(small: dict[str, Any], shape: Shape, layers: int, numbers: NumberFormat) -> dict[str, Any]:
    """Return the configuration of a model with this shape and `layers` layers."""
    return small | {
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim or head_dim(small),
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "torch_dtype": numbers.name,
    }


def _config(flag: str, folder: Path) -> dict[str, Any]:
    try:
        return files.read_config(folder)
    except (OSError, ValueError) as error:
        fail(PROGRAM, f"--{flag}: no model in {folder} ({error}); name a model folder")


def _check_room(out: Path, needed: int) -> None:
    """End the program if the disk has no room: a truncated file would fail only later, in vLLM."""
    place = next(folder for folder in (out.resolve(), *out.resolve().parents) if folder.exists())
    written = sum(path.stat().st_size for path in out.glob(f"*/*{files.WEIGHTS}"))
    free = shutil.disk_usage(place).free + written
    if needed > free:
        fail(PROGRAM, f"--out: {place} has {free / 1e9:.1f} GB free, and the pair takes {needed / 1e9:.1f} GB")


def _say(out: Path, tensors: Sequence[Tensor], layout: Layout) -> None:
    parameters = sum(math.prod(item.shape) for item in tensors if item.code != INT64)
    note = "" if layout.is_exact else "; norm weights are rounded: no number of copies makes them exact"
    sys.stdout.write(f"{out}: {parameters / 1e9:.2f} B parameters, {files.size_bytes(tensors) / 1e9:.2f} GB{note}\n")
    sys.stdout.flush()

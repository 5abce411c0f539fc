"""Trains the target and writes it as a Hugging Face checkpoint.

Owns: the mix of the three classes, the schedule, the loss on held-out conversations, `target/`.
Rows are documents laid end to end, cut at a fixed length; the loss is on every token. Matrices inside the
layers are trained by Muon, everything else by AdamW; learning rates fall linearly to zero over the last 60 %.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from . import corpus
from .conversation import CLASSES
from .llama import BOS_ID, EOS_ID, PAD_ID, Llama, Shape, read_checkpoint, write_checkpoint
from .tokenizer import encode_conversations

LONE_PREFIXES = ("lm_head",)


@dataclass(frozen=True)
class TargetRun:
    """Settings of one training run; shares are of documents' tokens."""

    seed: int
    steps: int = 1700
    rows: int = 8
    row_tokens: int = 512
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    raw_code_share: float = 0.25
    class_shares: tuple[float, float, float] = (0.30, 0.30, 0.15)


def token_stream(documents: list[list[int]], random: Random) -> Iterator[int]:
    """All documents' tokens, reshuffled at every pass, without end."""
    while True:
        random.shuffle(documents)
        for document in documents:
            yield from document


def training_rows(run: TargetRun, tokenizer: Tokenizer) -> Iterator[Tensor]:
    """Batches [rows, row_tokens + 1]; each row comes from one stream."""
    random = Random(run.seed)
    examples = corpus.conversations(run.seed, held_out=False)
    streams = [token_stream(encode_conversations(tokenizer, examples[name]), random) for name in CLASSES]
    raw = [[BOS_ID, *encoding.ids] for encoding in tokenizer.encode_batch(corpus.raw_documents())]
    streams.append(token_stream(raw, random))
    shares = (*run.class_shares, run.raw_code_share)
    while True:
        picks = random.choices(streams, shares, k=run.rows)
        yield torch.tensor([[next(stream) for _ in range(run.row_tokens + 1)] for stream in picks])


def next_token_loss(model: torch.nn.Module, rows: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        logits, _ = model(rows[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_losses(model: Llama, tokenizer: Tokenizer, seed: int) -> dict[str, float]:
    """Loss per class on conversations that training never saw."""
    losses = {}
    for name, items in corpus.conversations(seed, held_out=True).items():
        ids = [token for document in encode_conversations(tokenizer, items[:300]) for token in document]
        rows = torch.tensor(ids[: len(ids) // 513 * 513]).view(-1, 513)[:48]
        losses[name] = round(next_token_loss(model, rows).item(), 3)
    return losses


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm up over 40 steps, hold, fall linearly to zero over the last 60 %."""
    return min(1.0, (step + 1) / 40, (steps - step) / (0.6 * steps))


def fit(name: str, model: torch.nn.Module, run: Any, loss_of: Callable[[], Tensor]) -> dict[str, object]:
    """Train in place on the losses of one batch after another, with the settings `run`; return its figures."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    tools = [
        torch.optim.Muon(matrices, lr=run.matrix_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=run.other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    started, smooth = time.monotonic(), 0.0
    for step in range(run.steps):
        for tool, lr in zip(tools, (run.matrix_lr, run.other_lr), strict=True):
            tool.param_groups[0]["lr"] = lr * learning_rate_factor(step, run.steps)
            tool.zero_grad()
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for tool in tools:
            tool.step()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % 25 == 0 or step == run.steps - 1:
            print(f"{name} {step}/{run.steps} loss {smooth:.3f} {time.monotonic() - started:.0f} s", flush=True)
    return {"settings": asdict(run), "seconds": round(time.monotonic() - started), "loss": round(smooth, 3)}


def train_target(run: TargetRun, shape: Shape, tokenizer: Tokenizer, folder: Path) -> dict[str, object]:
    """Train, save, and return the model card's numbers."""
    torch.manual_seed(run.seed)
    model = Llama(shape)
    compiled = torch.compile(model)
    batches = training_rows(run, tokenizer)
    figures = fit("target", model, run, lambda: next_token_loss(compiled, next(batches)))
    save_target(model, folder)
    tokens = run.steps * run.rows * run.row_tokens
    return figures | {"tokens": tokens, "held_out_loss": held_out_losses(model, tokenizer, run.seed)}


def save_target(model: Llama, folder: Path) -> None:
    """Write config, generation config and bf16 weights under Hugging Face's names."""
    tensors = {
        name if name.startswith(LONE_PREFIXES) else f"model.{name}": value for name, value in model.state_dict().items()
    }
    write_checkpoint(folder, {"architectures": ["LlamaForCausalLM"], **model.shape.hf_config()}, tensors)
    generation = {"bos_token_id": BOS_ID, "eos_token_id": [EOS_ID, BOS_ID], "pad_token_id": PAD_ID}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")


def load_target(folder: Path) -> Llama:
    """The saved target, in bf16, as vLLM runs it."""
    _, shape, tensors = read_checkpoint(folder)
    model = Llama(shape)
    model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    return model.to(torch.bfloat16).eval().requires_grad_(requires_grad=False)

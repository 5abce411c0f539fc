"""Trains one draft head on the target's own generations.

Owns: batches, depth sampling, the loss, the offline acceptance length.
Input: the frozen target's hidden states (bf16, as served). Labels: where the text was generated greedily,
the target's token itself; where it was sampled, the target's whole distribution. Only drafts of reply tokens
count. Depths are sampled as in P-EAGLE's COD: every position at depth 0, and of the anchors kept at depth
d - 1 a share `keep_ratio` at depth d, so an element's predecessors are always there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn import functional

from .conversation import CLASSES
from .generations import Sample
from .heads import Elements, Head
from .llama import PAD_ID, Llama
from .train_target import fit


@dataclass(frozen=True)
class HeadRun:
    """Settings of one training run; `depths` counts depth 0."""

    seed: int
    steps: int
    depths: int = 8
    keep_ratio: float = 0.75
    batch_tokens: int = 3072
    matrix_lr: float = 0.02
    other_lr: float = 2e-3


@dataclass(frozen=True)
class Batch:
    """Padded rows: tokens [B, T], first reply position [B], row length [B], greedy rows [B]."""

    tokens: Tensor
    reply_start: Tensor
    length: Tensor
    greedy: Tensor

    def drafts_reply(self, elements: Elements) -> Tensor:
        """Boolean [B, N]: the element's anchor is a step of the reply and its draft exists."""
        anchor = (elements.position - elements.depth)[None, :]
        in_row = elements.position[None, :] + 2 < self.length[:, None]
        return (anchor + 1 >= self.reply_start[:, None]) & in_row


def make_batch(samples: list[Sample]) -> Batch:
    """Pad on the right; causal attention never sees the padding."""
    longest = max(len(s.tokens) for s in samples)
    return Batch(
        torch.tensor([s.tokens + [PAD_ID] * (longest - len(s.tokens)) for s in samples]),
        torch.tensor([s.prompt_tokens for s in samples]),
        torch.tensor([len(s.tokens) for s in samples]),
        torch.tensor([s.temperature == 0 for s in samples]),
    )


def batches(samples: list[Sample], batch_tokens: int, random: Random) -> Iterator[Batch]:
    """Rows of like length together, in random order, without end."""
    while True:
        ordered = sorted(
            (s for s in samples if len(s.tokens) > s.prompt_tokens + 2),
            key=lambda s: len(s.tokens) + random.random() * 16,
        )
        groups, group = [], list[Sample]()
        for sample in ordered:
            if group and (len(group) + 1) * len(sample.tokens) > batch_tokens:
                groups.append(group)
                group = []
            group.append(sample)
        random.shuffle(groups)
        for chosen in groups:
            yield make_batch(chosen)


def sample_depths(first: int, last: int, run: HeadRun) -> Elements:
    """Deeper elements for anchors in [first, last), nested and thinning out."""
    anchors = first + torch.randperm(max(last - first, 1))
    positions, depths = [], []
    for depth in range(1, run.depths):
        anchors = anchors[: max(1, round(len(anchors) * run.keep_ratio))]
        inside = anchors[anchors + depth < last]
        positions.append(inside + depth)
        depths.append(torch.full_like(inside, depth))
    return Elements(torch.cat(positions), torch.cat(depths))


def draft_loss(head: Head, target: Llama, batch: Batch, run: HeadRun) -> Tensor:
    """Mean cross-entropy over all counted elements, nats."""
    with torch.no_grad():
        target_logits, aux = target(batch.tokens, head.aux_layers)
    assert aux is not None
    extra = sample_depths(max(int(batch.reply_start.min()) - 1, 0), batch.tokens.shape[1] - 2, run)
    with torch.autocast("cpu", torch.bfloat16):
        groups = head(batch.tokens, aux, extra, run.depths)
    total, count = torch.zeros(()), 0
    for elements, outputs in groups:
        counted = batch.drafts_reply(elements)
        rows, columns = counted.nonzero(as_tuple=True)
        drafted = elements.position[columns]
        with torch.autocast("cpu", torch.bfloat16):
            logits = head.lm_head(outputs[rows, columns])
        log_probs = functional.log_softmax(logits.float(), dim=-1)
        greedy = batch.greedy[rows]
        labels = batch.tokens[rows, (drafted + 2).clamp(max=batch.tokens.shape[1] - 1)]
        total = total - log_probs[greedy].gather(1, labels[greedy][:, None]).sum()
        soft = target_logits[rows[~greedy], drafted[~greedy] + 1].float().softmax(-1)
        total = total - (soft * log_probs[~greedy]).sum()
        count += len(rows)
    return total / max(count, 1)


def train_head(head: Head, target: Llama, samples: list[Sample], run: HeadRun) -> dict[str, object]:
    """Train in place and return the model card's numbers."""
    torch.manual_seed(run.seed)
    stream = batches(samples, run.batch_tokens, Random(run.seed))
    return fit(head.name, head, run, lambda: draft_loss(head, target, next(stream), run))


@torch.no_grad()
def offline_acceptance_length(head: Head, target: Llama, samples: list[Sample], draft_tokens: int) -> dict[str, float]:
    """Acceptance length by class on greedy generations, walking as vLLM does: accept, then jump.

    `head` must be in bf16. Text past a right prefix is the target's own, so teacher forcing is exact here.
    """
    lengths: dict[str, list[int]] = {name: [] for name in CLASSES}
    for sample in (s for s in samples if s.temperature == 0):
        tokens = torch.tensor([sample.tokens])
        size = len(sample.tokens)
        _, aux = target(tokens, head.aux_layers)
        assert aux is not None
        anchors = torch.arange(size - 1)
        pairs = [(anchors[: size - 1 - d] + d, torch.full((max(size - 1 - d, 0),), d)) for d in range(1, draft_tokens)]
        extra = Elements(torch.cat([p for p, _ in pairs]), torch.cat([d for _, d in pairs]))
        right = torch.zeros(size, draft_tokens, dtype=torch.bool)
        for elements, outputs in head(tokens, aux, extra, draft_tokens):
            inside = elements.position + 2 < size
            position, depth = elements.position[inside], elements.depth[inside]
            right[position - depth, depth] = head.lm_head(outputs[0, inside]).argmax(-1) == tokens[0, position + 2]
        anchor = sample.prompt_tokens - 1
        while anchor < size - 2:
            accepted = int(right[anchor].long().cumprod(0).sum())
            lengths[sample.traffic_class].append(1 + accepted)
            anchor += 1 + accepted
    return {name: round(sum(values) / max(len(values), 1), 3) for name, values in lengths.items()}

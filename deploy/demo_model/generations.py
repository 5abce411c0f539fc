"""Text by the target itself: what the heads learn from, and what offline acceptance is counted on.

Owns: `Job`, `Sample`, their choice, and one run of vLLM without speculation.
Imports vLLM inside the function only; reads no environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from . import corpus
from .conversation import CLASSES, Message, render
from .prompts import read_prompts

TEMPERATURES = (0.0, 1.0)
MAX_PROMPT_TOKENS = 200


@dataclass(frozen=True)
class Job:
    """One reply to write."""

    traffic_class: str
    temperature: float
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Sample:
    """Token ids of prompt and reply; the first `prompt_tokens` are the prompt."""

    traffic_class: str
    temperature: float
    prompt_tokens: int
    tokens: list[int]


def training_jobs(tokenizer: Tokenizer, seed: int, per_class: int) -> list[Job]:
    """`per_class` prompts that training may see of every class, at each temperature."""
    jobs = []
    for name, items in corpus.conversations(seed, held_out=False).items():
        prompts = (tokenizer.encode(render(item.prompt(), open_reply=True)).ids for item in items)
        short = [ids for ids in prompts if len(ids) <= MAX_PROMPT_TOKENS][:per_class]
        jobs += [
            Job(name, temperature, ids, corpus.MAX_NEW_TOKENS[name]) for ids in short for temperature in TEMPERATURES
        ]
    return jobs


def prompt_jobs(tokenizer: Tokenizer, folder: Path, per_class: int) -> list[Job]:
    """The first `per_class` held-out prompts of every class, greedy."""
    jobs = []
    for name in CLASSES:
        for body in read_prompts(folder, name)[:per_class]:
            text = render(tuple(Message(**m) for m in body["messages"]), open_reply=True)
            jobs.append(Job(name, 0.0, tokenizer.encode(text).ids, body["max_tokens"]))
    return jobs


def generate(target: Path, jobs: list[Job], seed: int) -> list[Sample]:
    """The target's reply to every job."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 (takes seconds)

    engine = LLM(model=str(target), max_model_len=1024, max_num_seqs=128, enforce_eager=True, seed=seed)
    settings = [SamplingParams(temperature=job.temperature, max_tokens=job.max_tokens) for job in jobs]
    outputs = engine.generate([{"prompt_token_ids": job.prompt} for job in jobs], settings, use_tqdm=True)
    return [
        Sample(job.traffic_class, job.temperature, len(job.prompt), job.prompt + list(output.outputs[0].token_ids))
        for job, output in zip(jobs, outputs, strict=True)
    ]


def save_samples(samples: list[Sample], path: Path) -> None:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))


def load_samples(path: Path) -> list[Sample]:
    """Read what `save_samples` wrote."""
    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()]


def reply_tokens(samples: list[Sample]) -> dict[str, int]:
    """Reply tokens by class."""
    return {name: sum(len(s.tokens) - s.prompt_tokens for s in samples if s.traffic_class == name) for name in CLASSES}

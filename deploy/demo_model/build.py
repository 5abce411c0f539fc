"""Makes the whole pair from one seed: corpus, tokenizer, target, generations, all heads, prompts.

Owns: the order of the steps and the sizes. Each step writes its part and `report.json`; with `--only` the
others are skipped, so that one step can be repeated alone.

    python -m demo_model.build --work /tmp/demo_model             # from deploy/
    python -m demo_model.build --work /tmp/demo_model --only peagle --only offline
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

from . import corpus
from .dflash import DFlashHead, load_dflash, save_dflash
from .generations import generate, load_samples, prompt_jobs, reply_tokens, save_samples, training_jobs
from .heads import Head, load_head, new_head, save_head
from .llama import Shape
from .mtp import MtpHead, load_mtp, save_mtp
from .prompts import write_prompts
from .tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from .train_heads import HeadRun, offline_acceptance_length, train_head
from .train_target import TargetRun, load_target, train_target

STEPS = ("target", "prompts", "samples", "peagle", "eagle3", "mtp", "dflash", "offline")
AUX_LAYERS = (2, 4, 6)
PROMPTS_PER_CLASS = 192
SAMPLES_PER_CLASS = 700
DRAFT_TOKENS = 7
HEADS = {"peagle": (2, 8, 500), "eagle3": (1, 5, 400), "mtp": (1, 3, 250), "dflash": (2, 7, 400)}
"""Layers, depths, steps."""


def note(folder: Path, key: str, value: object) -> None:
    """Put one entry into `report.json`."""
    path = folder / "report.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, key: value}, indent=1) + "\n")


def build_target(folder: Path, seed: int) -> None:
    """Tokenizer and target."""
    examples = corpus.conversations(seed, held_out=False)
    texts = [item.text() for name in ("code", "chat") for item in examples[name]]
    tokenizer = train_tokenizer(texts + corpus.raw_documents(), Shape().vocab_size)
    save_tokenizer(tokenizer, folder / "target")
    note(folder, "target", train_target(TargetRun(seed), Shape(), tokenizer, folder / "target"))


def build_samples(folder: Path, work: Path, seed: int) -> None:
    """The heads' training text, and greedy replies to the held-out prompts."""
    tokenizer = load_tokenizer(folder / "target")
    jobs = training_jobs(tokenizer, seed, SAMPLES_PER_CLASS)
    held_out = prompt_jobs(tokenizer, folder / "prompts", per_class=64)
    samples = generate(folder / "target", jobs + held_out, seed)
    save_samples(samples[: len(jobs)], work / "samples.jsonl")
    save_samples(samples[len(jobs) :], work / "held_out.jsonl")
    note(folder, "samples", reply_tokens(samples[: len(jobs)]))


def build_head(folder: Path, work: Path, seed: int, name: str) -> None:
    """One draft head."""
    layers, depths, steps = HEADS[name]
    target = load_target(folder / "target")
    if name == "mtp":
        head: Head = MtpHead(target)
    elif name == "dflash":
        head = DFlashHead(target, layers, AUX_LAYERS)
    else:
        head = new_head(target, layers, AUX_LAYERS, parallel=name == "peagle")
    note(folder, name, train_head(head, target, load_samples(work / "samples.jsonl"), HeadRun(seed, steps, depths)))
    if isinstance(head, MtpHead):
        save_mtp(head, target, folder / name)
    elif isinstance(head, DFlashHead):
        save_dflash(head, depths, folder / name)
    else:
        save_head(head, folder / name)


def build_offline(folder: Path, work: Path) -> None:
    """Acceptance length in the layout of the training, for comparison with vLLM's."""
    target, samples = load_target(folder / "target"), load_samples(work / "held_out.jsonl")
    heads: dict[str, Head] = {name: load_head(folder / name) for name in ("peagle", "eagle3")}
    heads |= {"mtp": load_mtp(folder / "mtp", target), "dflash": load_dflash(folder / "dflash", target)}
    lengths = {name: offline_acceptance_length(head, target, samples, DRAFT_TOKENS) for name, head in heads.items()}
    print(lengths, flush=True)
    note(folder, "offline_acceptance_length", lengths)


def main() -> None:
    """Run the steps asked for, all when none is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where the pair goes")
    parser.add_argument("--work", type=Path, required=True, help="folder for the generated text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=STEPS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # old escapes in library sources that `ast` reads
    os.nice(5)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for step in arguments.only or STEPS:
        print(f"== {step}", flush=True)
        if step == "target":
            build_target(arguments.folder, arguments.seed)
        elif step == "prompts":
            tokenizer = load_tokenizer(arguments.folder / "target")
            write_prompts(tokenizer, arguments.folder / "prompts", arguments.seed, PROMPTS_PER_CLASS)
        elif step == "samples":
            build_samples(arguments.folder, arguments.work, arguments.seed)
        elif step == "offline":
            build_offline(arguments.folder, arguments.work)
        else:
            build_head(arguments.folder, arguments.work, arguments.seed, step)


if __name__ == "__main__":
    main()

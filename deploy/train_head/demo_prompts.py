"""Writes prompts of the demo pair's training sources as JSONL with `messages`, in place of prompts of your own traffic.

python deploy/train_head/demo_prompts.py --per-class 200 --out prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model import corpus


def main() -> None:
    """Write them in a seeded order, so that any first part has all classes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-class", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=600, help="characters of a prompt")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # old escapes in library sources that `ast` reads
    rng = random.Random(arguments.seed)
    lines = []
    for items in corpus.conversations(arguments.seed, held_out=False).values():
        prompts = [[asdict(message) for message in item.prompt()] for item in items]
        short = [prompt for prompt in prompts if sum(len(part["content"]) for part in prompt) <= arguments.longest]
        rng.shuffle(short)
        lines += [json.dumps({"messages": prompt}) for prompt in short[: arguments.per_class]]
    rng.shuffle(lines)
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} prompts in {arguments.out}")


if __name__ == "__main__":
    main()

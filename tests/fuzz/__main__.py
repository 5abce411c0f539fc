"""`make fuzz`: the targets, by inputs that a coverage-guided fuzzer (atheris, libFuzzer) grows.

Each target runs in a process of its own, in which `gateway` is instrumented. A find is an exception, ten seconds spent
on one input, or a gigabyte of memory. It ends the command with status 1 and leaves its input in the folder, to become a
seed.
"""

import argparse
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import atheris

from tests.fuzz.seeds import SEEDS, WORDS

LARGEST_INPUT_BYTES = 4096
SECONDS_AN_INPUT = 10
MEMORY_MIB = 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what the gateway reads.")
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs, over all targets")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="where inputs are kept between runs")
    parser.add_argument("--target", choices=sorted(SEEDS), help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        fuzz(given.target, given.count, given.folder, given.seed)
    targets = [given.target] if given.target else list(SEEDS)
    return max([run(target, given.count // len(targets), given.folder, given.seed) for target in targets])


def run(target: str, count: int, folder: Path, seed: int) -> int:
    """Fuzz one target in a process of its own; return 1 on a find."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz", "--inside", "--target", target, "--count", str(count)]
    command += ["--folder", str(folder), "--seed", str(seed)]
    log = folder / f"{target}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    said = log.read_text(errors="replace")
    verdict = "nothing found" if status == 0 and f"Done {count} runs" in said else f"FOUND SOMETHING, see {log}"
    sys.stdout.write(f"{target}: {count} inputs in {time.monotonic() - began:.0f} s, {verdict}\n")
    sys.stdout.flush()
    return int(verdict != "nothing found")


def fuzz(target: str, count: int, folder: Path, seed: int) -> None:
    """Fuzz in this process, which ends with it."""
    with atheris.instrument_imports(include=["gateway"]):
        check = import_module("tests.fuzz.targets").TARGETS[target]
    corpus = folder / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(SEEDS[target]):
        (corpus / f"seed-{number}").write_bytes(text)
    words = folder / f"{target}.dict"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in WORDS[target]))
    flags = {
        "runs": count, "seed": seed, "max_len": LARGEST_INPUT_BYTES, "timeout": SECONDS_AN_INPUT,
        "rss_limit_mb": MEMORY_MIB, "dict": words, "artifact_prefix": f"{folder}{os.sep}{target}-",
        "print_final_stats": 1,
    }  # fmt: skip
    atheris.Setup([sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), str(corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

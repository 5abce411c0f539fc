"""vLLM's own benchmark client, before the gateway as before an engine: it finds the acceptance there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stack import DEMO_MODEL, Stack, counters

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAM = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The sub-command without the command: that wants a distribution named vllm, and the one for the CPU is not."""

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


def bench_serve(url: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Run `vllm bench serve` against `url`; return what it says and its figures."""
    command = [sys.executable, "-c", PROGRAM, "--base-url", url, "--model", "demo"]
    command += ["--tokenizer", str(DEMO_MODEL / "target"), "--backend", "openai-chat"]
    command += ["--endpoint", "/v1/chat/completions", "--dataset-name", "random", "--random-input-len", "24"]
    command += ["--random-output-len", "24", "--num-prompts", "6", "--disable-tqdm", "--ignore-eos"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, json.loads((folder / "figures.json").read_text())


def test_vllm_bench_serve_shows_acceptance_behind_the_gateway(stack: Stack, tmp_path: Path) -> None:
    drafts, accepted = counters(stack.engine, DRAFTS), counters(stack.engine, ACCEPTED)
    said, figures = bench_serve(stack.gateway, tmp_path)
    assert figures["completed"] == 6
    assert "Speculative Decoding" in said
    assert "Acceptance length:" in said
    after, accepted_after = counters(stack.engine, DRAFTS), counters(stack.engine, ACCEPTED)
    assert figures["spec_decode_num_drafts"] == after[()] - drafts[()] > 0
    assert figures["spec_decode_accepted_tokens"] == accepted_after[()] - accepted[()]
    assert len(figures["spec_decode_per_position_acceptance_rates"]) > 0

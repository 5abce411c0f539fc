"""`vllm bench serve`, the real client, on an endpoint: the same prompts and reply lengths as a cell of a sweep."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CLIENT = (
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser; "
    "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""The client without the `vllm` script: the script of the CPU distribution looks for a package named `vllm`."""


class ClientFailedError(RuntimeError):
    """The client ended without a result."""


@dataclass(frozen=True, slots=True)
class Job:
    """The load: each question of the ShareGPT file `data` once, in order, `in_flight` at a time."""

    model: str
    tokenizer: str
    data: Path
    requests: int
    in_flight: int
    output_tokens: int


def run(url: str, job: Job, result: Path) -> dict[str, Any]:
    """Run the client and return what it saved into the file `result`; raises `ClientFailedError`."""
    process = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", _CLIENT, *flags(url, job, result)],
        env=os.environ | {"VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode != 0 or not result.is_file():
        raise ClientFailedError(f"vllm bench serve failed:\n{process.stdout[-3000:]}")
    figures = json.loads(result.read_text())
    if not isinstance(figures, dict):
        raise ClientFailedError(f"vllm bench serve saved no figures into {result}")
    return figures


def flags(url: str, job: Job, result: Path) -> Sequence[str]:
    """Return the flags of `vllm bench serve`."""
    return [
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url),
        *("--model", job.tokenizer, "--served-model-name", job.model),
        *("--dataset-name", "sharegpt", "--dataset-path", str(job.data), "--disable-shuffle", "--no-oversample"),
        *("--num-prompts", str(job.requests), "--sharegpt-output-len", str(job.output_tokens), "--ignore-eos"),
        *("--max-concurrency", str(job.in_flight), "--temperature", "0", "--disable-tqdm"),
        *("--extra-body", json.dumps({"cache_salt": secrets.token_hex(16)})),  # our client also has one for each run
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99"),
        *("--save-result", "--result-dir", str(result.parent), "--result-filename", result.name),
    ]

"""The load of a cell, driven by `vllm bench serve` itself, in a process that serves all cells of a sweep.

Every flag, figure and definition is the client's. Prompts of a data set of ours are given to it as its own requests,
because its JSONL data set knows neither chats with a history nor, without pandas, any file.
"""

import json
import multiprocessing
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from importlib import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specpilot.bench.sweep.plan import Load
from specpilot.bench.sweep.texts import Prompt
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.http_client import reach_this_machine_directly

SHOWN_ERRORS = 3
_ONE_EACH = (
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
)  # fmt: skip
"""Lists with an item for each request, which a cell does not keep."""


class ClientFailedError(RuntimeError):
    """The client ended without figures, or no request was answered."""


def flags(url: str, model: str, load: Load, count: int, *, ignore_eos: bool) -> list[str]:
    """Return the client's flags for `count` requests to `model` at `url`.

    With `ignore_eos` they have a `cache_salt` of their own, which as only vLLM and SGLang know it too: no cell reuses
    another one's prefixes.
    """
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url, "--model", model]
    words += ["--num-prompts", str(count), "--temperature", "0", "--save-detailed", "--disable-tqdm"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99"]
    if load.concurrency is not None:
        words += ["--max-concurrency", str(load.concurrency)]
    else:
        words += ["--request-rate", str(load.request_rate)]
    if ignore_eos:
        words += ["--ignore-eos", "--extra-body", json.dumps({"cache_salt": secrets.token_hex(16)})]
    return words


class Client:
    """The process of `vllm bench serve`; its output goes to `log`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._connection, other_end = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(other_end, log), daemon=True)
        self._process.start()
        other_end.close()

    def run(self, words: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, Any]:
        """Return the client's figures with these flags; without `prompts` they name a data set of its own.

        Raises `ClientFailedError`.
        """
        try:
            self._connection.send((words, prompts))
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ClientFailedError(f"vllm bench serve ended; its output is in {self._log}") from error
        if isinstance(answer, str):
            raise ClientFailedError(f"vllm bench serve failed: {answer}; its output is in {self._log}")
        figures = dict(answer)
        errors = [error.strip().splitlines()[-1] for error in figures.pop("errors", ()) if error.strip()]
        if not figures["completed"]:
            raise ClientFailedError(f"no request was answered: {errors[0] if errors else 'no reason given'}")
        return {name: value for name, value in figures.items() if name not in _ONE_EACH} | {
            "errors": errors[:SHOWN_ERRORS]
        }

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._connection.close()


def is_installed() -> bool:
    """Whether vLLM, which has the client, can be imported here."""
    return util.find_spec("vllm") is not None


def _serve(connection: Connection, log: Path) -> None:
    """The process: one run for each message, until the other end is closed."""
    reach_this_machine_directly(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the sweep, which ends this process
    with log.open("a") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    from vllm.benchmarks import serve  # noqa: PLC0415 - vLLM loads for seconds
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - as above

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    while True:
        try:
            words, prompts = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            connection.send(_figures(serve, parser, words, prompts))
        except SystemExit:
            connection.send("it does not take these flags")
        except Exception as error:  # noqa: BLE001 - whatever the client raises is its answer
            connection.send(str(error) or type(error).__name__)


def _figures(serve: Any, parser: Any, words: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, Any]:
    if not prompts:
        return dict(serve.main(parser.parse_args(words)))
    from vllm.benchmarks.datasets import SampleRequest  # noqa: PLC0415 - as above

    requests = [
        SampleRequest(prompt="", prompt_len=0, expected_output_len=tokens or 0, chat_messages=list(messages))
        for messages, tokens in prompts
    ]
    # A tokenizer is loaded in any case, and counts nothing: prompts and replies are counted by the server.
    tokenizer = ("--tokenizer", str(DEMO_MODEL / "target"))
    with patch.object(serve, "get_samples", lambda *_: requests):
        return dict(serve.main(parser.parse_args([*words, "--dataset-name", "custom", *tokenizer])))

"""A vLLM engine in a process of its own, driven over a pipe, for the adapter's measurement.

The parent sends one JSON object a line and reads one a line back. The engine's core runs in the worker's own process
(no API server, no client), so that only the engine is timed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.bench.adapter import law_share, single_k
from specpilot.bench.adapter.parts import STEPS_IN_A_PIECE, leaving_out
from specpilot.bench.gpu_engine.engine import Engine

MAX_RUNNING = 32
LONGEST_REPLY = 1024
"""In tokens: half of the longest sequence, so that prompts have room."""

ANSWER_WITHIN_S = 600.0
"""Longest wait for an answer: an engine starts in one or two minutes, and a reply takes seconds."""


class Piece(NamedTuple):
    """Some steps that only decoded: the tokens that they delivered, and the seconds that they took."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class EngineWorker:
    """The parent's end: an engine with the given speculation, with or without the adapter's scheduler."""

    def __init__(self, name: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the engine fails, gone with it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specpilot.bench.adapter.engine_worker", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"} | dict(environment),
        )
        self._answer()

    def run(self, kind: str, within_s: float | None = None, **job: Any) -> dict[str, Any]:
        """Return the outcome of a job, one of `JOBS`; an engine that takes longer than `within_s` is ended."""
        self._ask({"kind": kind} | job)
        return self._answer(within_s)

    def pieces(self, prompts: Sequence[str], tokens: int, **options: Any) -> Iterator[Piece]:
        """Generate `tokens` tokens for each prompt, all at once; the iterator's next item runs the next steps."""
        self._ask({"kind": "pieces", "prompts": list(prompts), "tokens": tokens} | options)
        while (piece := self._answer()) != {}:
            yield Piece(**piece)
            self._ask({})

    def close(self) -> None:
        """End the engine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30.0)
        self._process.stdout.close()
        self._log.close()

    def _ask(self, job: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def _answer(self, within_s: float | None = None) -> dict[str, Any]:
        within_s = ANSWER_WITHIN_S if within_s is None else within_s
        assert self._process.stdout is not None
        hangs = threading.Event()

        def end() -> None:
            hangs.set()
            self._process.kill()

        watch = threading.Timer(within_s, end)
        watch.daemon = True
        watch.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    return dict(json.loads(line))
        finally:
            watch.cancel()
        status = self._process.wait()
        failure = f"gave no answer within {within_s:g} s" if hangs.is_set() else f"ended with status {status}"
        self._log.seek(0)
        output = self._log.read()[-3000:]
        self.close()
        raise RuntimeError(f"the engine {self.name!r} {failure}:\n{output}")


def main(options: dict[str, Any]) -> None:
    """The worker's end; a job with `k` has K = `k` for all requests."""
    defaults = {"max_num_seqs": MAX_RUNNING, "max_model_len": 2 * LONGEST_REPLY, "enable_prefix_caching": False}
    engine = Engine({"enforce_eager": True, "disable_log_stats": False, "seed": 0} | defaults | options)
    _say({})
    while line := sys.stdin.readline():
        job = json.loads(line)
        if "k" in job:
            engine.set_k(job.pop("k"))
        if (kind := job.pop("kind")) == "pieces":
            _generate_in_pieces(engine.llm, **job)
        else:
            _say(JOBS[kind](engine.llm, **job))


def _without_a_part(llm: Any, prompts: Sequence[str], tokens: int, part: str, seed: int) -> dict[str, Any]:
    """Return the `pairs` of pieces with a part of the adapter (`bench.adapter.parts`) and without it."""
    with leaving_out(llm, part, seed) as pairs:
        llm.generate(prompts, _sampling(tokens), use_tqdm=False)
    return {"pairs": pairs}


JOBS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "part": _without_a_part,
    "law share": law_share.played,
    "single K": single_k.played,
}


def _sampling(tokens: int) -> Any:
    from vllm import SamplingParams  # noqa: PLC0415 - the parent must not load vLLM

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def _generate_in_pieces(llm: Any, prompts: Sequence[str], tokens: int) -> None:
    """Generate; after every few steps report them and wait for a line. No piece contains the prefill."""
    engine, delivered = llm.llm_engine, dict[str, int]()

    def step() -> None:
        for output in engine.step():
            delivered[output.request_id] = len(output.outputs[0].token_ids)

    for number, prompt in enumerate(prompts):
        engine.add_request(f"piece-{number}", prompt, _sampling(tokens))
    while len(delivered) < len(prompts):
        step()
    while engine.has_unfinished_requests():
        before, began = sum(delivered.values()), time.perf_counter()
        for _ in range(STEPS_IN_A_PIECE):
            step()
            if not engine.has_unfinished_requests():
                break
        seconds = time.perf_counter() - began
        _say({"tokens": sum(delivered.values()) - before, "seconds": seconds})
        sys.stdin.readline()
    _say({})


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

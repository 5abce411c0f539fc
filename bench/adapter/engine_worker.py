"""A vLLM engine in a process of its own, driven over a pipe, for the adapter's measurement.

The parent sends one JSON object a line and reads one a line back. The engine's core runs in the worker's own process
(no API server, no client), so that only the engine is timed.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from specpilot.bench.adapter import law_pieces, single_k
from specpilot.bench.adapter.parts import STEPS_IN_A_PIECE, Pair, leaving_out
from specpilot.bench.gpu_engine.engine import offer
from specpilot.engine_adapter import number_format, plugin_names

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

    def run(
        self, prompts: Sequence[str], tokens: int, *, within_s: float | None = None, **options: Any
    ) -> dict[str, Any]:
        """Generate `tokens` tokens for each prompt, all at once; an engine that takes longer than `within_s` is ended.

        Returns the `ids` if asked; with `part`, one of `bench.adapter.parts.PARTS`, the `pairs` of pieces with it and
        without it.
        """
        self._ask({"prompts": list(prompts), "tokens": tokens} | options)
        return self._answer(within_s)

    def pieces(self, prompts: Sequence[str], tokens: int, **options: Any) -> Iterator[Piece]:
        """Generate like `run`, some steps at a time; the iterator's next item runs the next steps."""
        self._ask({"prompts": list(prompts), "tokens": tokens, "in_pieces": True} | options)
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
    """The worker's end."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - the parent must not load vLLM

    if "scheduler_cls" in options:
        plugin_names.switch_on()
    llm = LLM(
        dtype=options.pop("dtype", None) or number_format.fitting(),
        enforce_eager=True,
        max_num_seqs=options.pop("max_num_seqs", MAX_RUNNING),
        max_model_len=2 * LONGEST_REPLY,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        **options,
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    _say({})
    while line := sys.stdin.readline():
        job = json.loads(line)
        sampling = SamplingParams(temperature=job.get("temperature", 0.0), max_tokens=job["tokens"], ignore_eos=True)
        ended = threading.Event()
        thread = None
        if "k" in job:
            offer(scheduler.control, job["k"])
        if job.get("thrash_seed") is not None:
            thread = threading.Thread(target=_thrash, args=(scheduler.control, job["thrash_seed"], ended))
            thread.start()
        if job.get("law_share"):
            _say(law_pieces.played(llm, job["prompts"], job["law_share"]))
            continue
        if job.get("single_k"):
            _say(single_k.played(llm, **job["single_k"]))
            continue
        if job.get("in_pieces"):
            _generate_in_pieces(llm, job["prompts"], sampling)
            continue
        with _leaving_out(llm, job) as pairs:
            outputs = llm.generate(job["prompts"], sampling, use_tqdm=False)
        ended.set()
        if thread is not None:
            thread.join()
        answer: dict[str, Any] = {"pairs": pairs}
        if job.get("ids"):
            answer["ids"] = [list(item.outputs[0].token_ids) for item in outputs]
        _say(answer)


def _leaving_out(llm: Any, job: Mapping[str, Any]) -> AbstractContextManager[list[Pair]]:
    return leaving_out(llm, job["part"], job["seed"]) if "part" in job else nullcontext([])


def _generate_in_pieces(llm: Any, prompts: Sequence[str], sampling: Any) -> None:
    """Generate; after every few steps report them and wait for a line. No piece contains the prefill."""
    engine, delivered = llm.llm_engine, dict[str, int]()

    def step() -> None:
        for output in engine.step():
            delivered[output.request_id] = len(output.outputs[0].token_ids)

    for number, prompt in enumerate(prompts):
        engine.add_request(f"piece-{number}", prompt, sampling)
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


def _thrash(control: Any, seed: int, ended: threading.Event) -> None:
    from specpilot.engine_adapter.plan.speculation_control import KTable, Source  # noqa: PLC0415 - beside vLLM's

    rng = random.Random(seed)  # noqa: S311 - a reproducible disturbance
    while not ended.wait(rng.uniform(0.0, 0.01)):
        depths = [0, 0, *range(control.k_max + 1)]
        # Half of the time K differs within a batch
        row = tuple(rng.choice([[rng.choice(depths)] * 8, rng.choices(depths, k=8)]))
        table = KTable(Source.FIXED, {"default": row}, rng.choice([0.0, 0.02, 1.0]), {"default": max(1, *row)})
        control.table = lambda _, table=table: table


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

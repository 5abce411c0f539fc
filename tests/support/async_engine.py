"""vLLM's asynchronous engine loop on a CPU, in this process: its scheduler a step ahead of its model runner.

vLLM switches asynchronous scheduling off on CPUs because it gains nothing there; its code paths need only CUDA's
streams and events, which order work that a CPU does in order anyway. So they are replaced by ones that do nothing,
and the real `AsyncScheduler`, batch queue and model runner run. Run as a program it prints the token ids of each
reply as JSON.
"""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

import torch
from vllm import LLM, SamplingParams
from vllm.platforms.cpu import CpuPlatform

from policy.types import KRange, Schedule
from tests.support.stack import CLASSES, DEMO_MODEL, prompts


class _InOrder:
    """A CUDA stream or event where everything happens in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, *args: Any) -> None:
        pass


@contextmanager
def _stream(_: Any) -> Iterator[None]:
    yield


def make_asynchronous() -> None:
    """Let vLLM schedule asynchronously in this process."""
    torch.cuda.Stream = torch.cuda.Event = torch.Event = _InOrder  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: _InOrder()  # type: ignore[assignment,return-value]
    torch.cuda.stream = _stream  # type: ignore[assignment]
    update = CpuPlatform.check_and_update_config.__func__

    def keep_asynchronous(cls: Any, vllm_config: Any) -> None:
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(keep_asynchronous)


def thrash(control: Any, done: threading.Event) -> None:
    """Change K of every class at random, every few steps, 0 and probes included."""
    rng = random.Random(5)
    while not done.wait(rng.uniform(0.0, 0.02)):
        classes = {name: (KRange(1, 32, rng.choice([0, 0, *range(8)])),) for name in ("default", *CLASSES)}
        probe_ratio = rng.choice([0.0, 0.02, 0.3])
        schedule = Schedule(control.model, control.pool, control.version + 1, 0.0, 3600.0, probe_ratio, classes)
        control.offer(schedule, time.monotonic())


def main(has_adapter: bool, count: int) -> None:
    """Reply to `count` prompts at temperature 0, with the adapter and a changing K or without speculation."""
    make_asynchronous()
    options: dict[str, Any] = {}
    if has_adapter:
        options = {
            "scheduler_cls": "engine_adapter.scheduler.SpecPilotAsyncScheduler",
            "speculative_config": {
                "method": "eagle3",
                "model": str(DEMO_MODEL / "peagle"),
                "num_speculative_tokens": 7,
                "parallel_drafting": True,
            },
        }
    llm = LLM(
        str(DEMO_MODEL / "target"),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=24,
        max_model_len=2048,
        max_num_batched_tokens=256,  # long prompts are prefilled in chunks
        async_scheduling=True,
        disable_log_stats=False,
        seed=0,
        **options,
    )
    core = llm.llm_engine.engine_core.engine_core
    assert core.async_scheduling
    assert core.batch_queue_size == 2
    done = threading.Event()
    if has_adapter:
        threading.Thread(target=thrash, args=(core.scheduler.control, done), daemon=True).start()
    wanted = prompts(count)
    sampling = [
        SamplingParams(temperature=0, max_tokens=32 + i % 60, extra_args={"traffic_class": name})
        for i, (name, _) in enumerate(wanted)
    ]
    replies = llm.chat([item["messages"] for _, item in wanted], sampling, use_tqdm=False)
    done.set()
    changes = core.scheduler.control.version if has_adapter else 0
    sys.stdout.write(json.dumps({"ids": [list(r.outputs[0].token_ids) for r in replies], "changes": changes}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown expects a GPU's


if __name__ == "__main__":
    main(sys.argv[1] == "adapter", int(sys.argv[2]))

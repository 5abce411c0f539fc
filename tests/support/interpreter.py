"""Model runner V2 on a CPU: vLLM's own Triton kernels run by Triton's interpreter, in this process.

`python -m tests.support.interpreter MODULE ARGUMENTS...` runs a support program on it, which finds out by `ON_V2`.

vLLM's CPU build has model runner V2 and no Triton backend for it. `install` puts in place what is missing, before vLLM
is imported: a Triton backend named "cpu" that reports an active driver, so that vLLM takes its kernels for real ones,
and stand-ins for CUDA's streams and events, which have nothing to wait for. The engine core runs in the same process.

What runs: every kernel, the scheduler, the runner, the speculators, eagerly and synchronously. What does not: CUDA
graphs, compiled kernels, asynchronous copies. A step of the demo pair takes 0.1 to 0.4 s.
"""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # One thread: no two that wait for each other on a busy machine.
    "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
}

ON_V2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


class Stream:
    """A CUDA stream on which everything has already run."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, _: "Stream") -> None: ...

    def wait_event(self, _: "Event") -> None: ...

    def record_event(self, *_: Any) -> "Event":
        return Event()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Event:
    """A CUDA event that has already happened."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: "Event") -> float:
        return 0.0


def install() -> None:
    """Prepare this process, before vLLM is imported."""
    os.environ |= ENVIRONMENT
    import torch  # noqa: PLC0415 - after the environment
    from triton.backends import backends  # noqa: PLC0415 - as above

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)  # type: ignore[assignment]
    stream = Stream()

    @contextmanager
    def use(_: Any) -> Iterator[None]:
        yield

    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.Event = torch.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *_, **__: stream  # type: ignore[assignment,return-value]
    torch.cuda.stream = use  # type: ignore[assignment]
    torch.cuda.set_stream = lambda *_: None  # type: ignore[assignment]
    _take_any_mask()


def _take_any_mask() -> None:
    """Let the interpreter take masks of wider integers, 1 or 0, which `and` of a scalar and a block makes."""
    from triton.runtime.interpreter import InterpreterBuilder  # noqa: PLC0415 - after the environment

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def load_by_bits(self: Any, ptrs: Any, mask: Any, *more: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, ptrs, mask, *more)

    def store_by_bits(self: Any, ptrs: Any, value: Any, mask: Any, *more: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, ptrs, value, mask, *more)

    InterpreterBuilder.create_masked_load = load_by_bits
    InterpreterBuilder.create_masked_store = store_by_bits


if __name__ == "__main__":
    install()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

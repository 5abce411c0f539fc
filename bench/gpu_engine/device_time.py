"""The device's time in a step, without the host's time to launch it.

`span_ms`, of every timed step, is the time between CUDA events before the step's first operation and after its last; it
includes pauses in which the device waits for the host's next launch. `busy_ms`, of a few steps under torch's profiler,
is the time in which at least one kernel or copy ran. Profiled steps are not timed: the profiler slows the host.

Without CUDA both are unknown, which is `None`.
"""

import statistics
from collections.abc import Iterable
from typing import Any

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
"""Prefixes of the names of runtime calls that launch work."""


class Spans:
    """CUDA events around the launches of each step; without CUDA nothing."""

    def __init__(self, core: Any) -> None:
        import torch  # noqa: PLC0415 - the parent must not load it

        self._events: list[tuple[Any, Any]] = []
        self._first: Any = None
        if not torch.cuda.is_available():
            return
        executor = core.model_executor
        execute, sample = executor.execute_model, executor.sample_tokens

        def event() -> Any:
            made = torch.cuda.Event(enable_timing=True)
            made.record()
            return made

        def beginning(*args: Any, **kwargs: Any) -> Any:
            self._first = event()
            return execute(*args, **kwargs)

        def ending(*args: Any, **kwargs: Any) -> Any:
            output = sample(*args, **kwargs)
            if self._first is not None:
                self._events.append((self._first, event()))
                self._first = None
            return output

        executor.execute_model, executor.sample_tokens = beginning, ending

    def clear(self) -> None:
        """Drop the steps so far."""
        self._events.clear()

    def median_ms(self, steps: int) -> float | None:
        """Return the median of the latest `steps` steps, in milliseconds; waits for the device."""
        events, self._events = self._events[-steps:], []
        if not events:
            return None
        events[-1][1].synchronize()
        return statistics.median(float(first.elapsed_time(last)) for first, last in events)


def busy_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of the spans (begin, end) in nanoseconds."""
    total, until = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


class Profiled:
    """Profiles `steps` steps, from the step in which `begin` is called; without CUDA its figures are unknown."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._profile: Any = None

    def begin(self) -> None:
        """Start profiling, if there is a device."""
        import torch  # noqa: PLC0415 - as above

        if not torch.cuda.is_available():
            return
        torch.cuda.synchronize()
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profile.__enter__()

    def end(self) -> dict[str, Any]:
        """Return `busy_ms`, `kernels` and `launches` of a step; each is `None` when unknown."""
        nothing = {"busy_ms": None, "kernels": None, "launches": None}
        if self._profile is None:
            return nothing
        import torch  # noqa: PLC0415 - as above

        torch.cuda.synchronize()
        profile, self._profile = self._profile, None
        profile.__exit__(None, None, None)
        spans, launches = [], 0
        for item in profile.profiler.kineto_results.events():
            if item.device_type() == torch.autograd.DeviceType.CUDA:
                spans.append((item.start_ns(), item.start_ns() + item.duration_ns()))
            elif item.name().startswith(_LAUNCHES):
                launches += 1
        if not spans:
            return nothing
        return {
            "busy_ms": busy_ns(spans) / 1e6 / self.steps,
            "kernels": len(spans) / self.steps,
            "launches": launches / self.steps,
        }

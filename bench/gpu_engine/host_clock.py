"""The time of the engine's own thread in a step: calls of the scheduler and the executor, and waiting for the device.

In vLLM's asynchronous loop a step takes the longer of the host's calls and the device's work. The calls only launch the
device's work, so their time is the host's. On a CPU the executor's call is the work itself.

The engine's core must run in this thread (`VLLM_ENABLE_V1_MULTIPROCESSING=0`). Work outside of `step_fn`, such as
detokenization, is not counted: in a server another process does it.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

_CALLS = (("scheduler", "schedule"), ("scheduler", "update_from_output"))
_EXECUTOR_CALLS = (("model_executor", "execute_model"), ("model_executor", "sample_tokens"))


class HostStep(NamedTuple):
    """Seconds of one step: in the scheduler, in the executor's calls, and waiting for the device's answer."""

    scheduler_s: float
    executor_s: float
    waiting_s: float

    @property
    def host_s(self) -> float:
        """Seconds in which the engine's thread worked."""
        return self.scheduler_s + self.executor_s


class HostClock:
    """Sums the time in calls of an engine's `core`; `take` returns the sums and resets them."""

    def __init__(self, core: Any) -> None:
        self._seconds = {"scheduler": 0.0, "executor": 0.0, "step": 0.0}
        for owner, name in _CALLS:
            self._time(getattr(core, owner), name, "scheduler")
        for owner, name in _EXECUTOR_CALLS:
            self._time(getattr(core, owner), name, "executor")
        self._time(core, "step_fn", "step")

    def take(self) -> HostStep:
        """Return the seconds since the last call of `take`."""
        scheduler, executor, step = self._seconds.values()
        self._seconds.update(scheduler=0.0, executor=0.0, step=0.0)
        return HostStep(scheduler, executor, max(0.0, step - scheduler - executor))

    def _time(self, owner: Any, name: str, kind: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)
        seconds = self._seconds

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                seconds[kind] += time.perf_counter() - began

        setattr(owner, name, timed)

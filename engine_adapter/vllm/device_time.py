"""When the device was done with each step of vLLM's asynchronous loop, read late and without a wait.

The loop launches step i + 1, then takes in the outcome of step i. So the time between two updates contains the launch
of the next step: that of a prompt, which may take twice as long as any other, is found at the step before it. The
device knows better: a step that is launched late ends late there.

The runner's output (`AsyncGPUModelRunnerOutput` on V1) is made when all of a step is launched, and `get_output`
returns when the step's tokens are on the host. At the first a timing event is recorded. At the second that event has
passed, and so has the one of the step before: the time between the two is read then, and nothing waits for it. On a
processor, which has run the step by the time it is launched, the clock is read in place of an event.

The seconds travel as an attribute of vLLM's `ModelRunnerOutput`, also from a worker's process.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

ATTRIBUTE = "specpilot_device_s"
_MARK = "_specpilot_mark"
_MS = 1000.0


class HostMark:
    """A moment on a processor."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def since(self, before: "HostMark") -> float | None:
        """Return the seconds since `before`."""
        return self.at - before.at


class DeviceMark:
    """A moment on the current CUDA stream: when all that was launched before is done."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def since(self, before: "DeviceMark") -> float | None:
        """Return the seconds since `before` on the device; `None` while it has not come that far."""
        if not (before.event.query() and self.event.query()):
            return None
        return float(before.event.elapsed_time(self.event)) / _MS


def of_output(output: Any) -> float | None:
    """Return the seconds on the device from the end of the step before to that of the one with this `output`.

    `None` where that is not known: for the first step, and in the synchronous loop, which has no such time apart.
    """
    found: float | None = getattr(output, ATTRIBUTE, None)
    return found


def _mark() -> HostMark | DeviceMark:
    return DeviceMark() if torch.cuda.is_initialized() else HostMark()


def mark_steps(outputs: Any, mark: Callable[[], Any] = _mark) -> None:
    """Let outputs of this class, made when a step was launched, say how long the device took for it."""
    init, get_output = outputs.__init__, outputs.get_output
    latest: list[Any] = []  # the mark of the step that was launched last

    @wraps(init)
    def init_with_mark(self: Any, *args: Any, **kwargs: Any) -> None:
        own = mark()  # before vLLM has its copy wait for all that was launched, so that it has passed then
        setattr(self, _MARK, (own, latest[0] if latest else None))
        latest[:] = [own]
        init(self, *args, **kwargs)

    @wraps(get_output)
    def get_output_with_time(self: Any) -> Any:
        output = get_output(self)
        own, before = getattr(self, _MARK)
        seconds = own.since(before) if before is not None else None
        if output is not None and seconds is not None:
            setattr(output, ATTRIBUTE, seconds)
        return output

    outputs.__init__ = init_with_mark
    outputs.get_output = get_output_with_time

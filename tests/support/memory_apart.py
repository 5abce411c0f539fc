"""A CPU as if the models ran on an accelerator: with memory of their own, and copies to the host that arrive late.

vLLM's runner for CPUs makes one tensor of each pair that a GPU's runner has (`.cpu` and `.gpu` of its buffers), and a
copy from the CPU to the CPU is done, or left out, at once. So code that reads the wrong one of a pair, or reads the
host's before it has waited for the copy, gives the right text there. `install` takes that away from this process:

- pairs stay pairs, and a tensor that is sent to the device is another one than its source;
- a copy that was begun in another stream than the default one arrives when somebody waits for an event that was
  recorded after it. Until then the host reads `GARBAGE`. What is copied is what stands there then;
- a source on the host may not change until the device has read it. `Seen.changed` counts those that did when an event
  was waited for that was recorded after the copy had been begun.

Everything that the device computes is still done at once and in order: an overlap of two streams' kernels is not shown.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

GARBAGE = -7_654_321
"""What stands where a copy has not arrived: no token's id, no length, no place."""


@dataclass
class Seen:
    """What happened: copies that arrived late, tensors sent to the device, and sources that changed too early.

    `changed` counts these by the line that began the copy.
    """

    late: int = 0
    sent: int = 0
    changed: dict[str, int] = field(default_factory=dict)


SEEN = Seen()


class Stream:
    """A CUDA stream; the copies that were begun in it."""

    device = torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.begun: list[_Copy] = []

    def synchronize(self) -> None:
        for copy in self.begun:
            copy.end()
        self.begun.clear()

    def wait_stream(self, *args: Any) -> None:
        """Nothing to do: kernels run at once."""

    wait_event = wait_stream


class Event:
    """A CUDA event; waiting for it ends the copies that were begun before it was recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._before: list[_Copy] = []

    def record(self, stream: Stream | None = None) -> None:
        of = _current if stream is None else stream
        of.begun = [copy for copy in of.begun if not copy.is_done]
        self._before = [*of.begun]

    def synchronize(self) -> None:
        for copy in self._before:
            copy.end()
        self._before.clear()

    def wait(self, *args: Any) -> None:
        """Nothing to do: kernels run at once."""


class _Copy:
    """A copy under way, and what its end is."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self.is_done = False
        self._finish = finish

    def end(self) -> None:
        if not self.is_done:
            self.is_done = True
            with torch.inference_mode():
                self._finish()


_DEFAULT = Stream()
_current = _DEFAULT


@contextmanager
def stream(of: Stream) -> Iterator[None]:
    """`torch.cuda.stream`."""
    global _current  # noqa: PLW0603 - as CUDA's; only one thread begins copies
    before, _current = _current, of
    try:
        yield
    finally:
        _current = before


class Copies(TorchFunctionMode):
    """While it is entered, every copy that nobody waits for is one of the rig's."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        found = func(*args, **options)
        if not options.get("non_blocking") or func not in (torch.Tensor.to, torch.Tensor.copy_):
            return found
        source = args[1] if func is torch.Tensor.copy_ else args[0]
        target = source.clone() if found is source else found
        if _current is _DEFAULT:
            _note_sent(source)
        else:
            _put_off(target, source)
        return target


def _put_off(target: torch.Tensor, source: torch.Tensor) -> None:
    def arrive() -> None:
        SEEN.late += 1
        target.copy_(source)

    if target.is_floating_point():
        target.fill_(float("nan"))
    elif target.dtype == torch.bool:
        target.logical_not_()
    else:
        target.fill_(GARBAGE)
    _current.begun.append(_Copy(arrive))


def _note_sent(source: torch.Tensor) -> None:
    SEEN.sent += 1
    as_sent, frame = source.clone(), sys._getframe(2)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def compare() -> None:
        if not torch.equal(source, as_sent):
            SEEN.changed[place] = SEEN.changed.get(place, 0) + 1

    _DEFAULT.begun.append(_Copy(compare))


def _send(data: Any, device: Any = None, dtype: torch.dtype | None = None, out: torch.Tensor | None = None) -> Any:
    """vLLM's `async_tensor_h2d`, of which its stand-in for CPUs returns the host's tensor itself."""
    del device
    host = torch.from_numpy(data) if isinstance(data, np.ndarray) else torch.as_tensor(data, dtype=dtype)
    if out is not None:
        return out.copy_(host, non_blocking=True)
    return host.to(device="cpu", dtype=dtype, non_blocking=True)


def install() -> None:
    """Take the host's and the device's memory of this process apart, before an engine is made."""
    with suppress(ImportError):  # what newer versions put in the place of CUDA's functions, as they import it
        import_module("vllm.v1.worker.cpu.shm")
        import_module("vllm.utils.torch_utils").async_tensor_h2d = _send
    cpu_model_runner = import_module("vllm.v1.worker.cpu_model_runner")
    torch.cuda.Stream = Stream  # type: ignore[assignment,misc]
    torch.cuda.Event = torch.Event = Event  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: _current  # type: ignore[assignment,return-value]
    torch.cuda.stream = stream  # type: ignore[assignment]
    cpu_model_runner._torch_cuda_wrapper = nullcontext  # its own events know of no copies
    cpu_model_runner.CPUModelRunner._postprocess_tensors = lambda _: None
    Copies().__enter__()

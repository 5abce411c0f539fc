"""Samples the utilisation and the memory of the machine's GPUs with `nvidia-smi` during a measurement."""

import subprocess
import threading
from statistics import fmean
from types import TracebackType
from typing import Self

SAMPLE_EVERY_S = 0.5
"""Seconds between two samples; `nvidia-smi` itself takes some 50 ms."""

_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
_MIB = 1 << 20


def sums(text: str) -> tuple[float, int]:
    """Return the mean utilisation (0..1) of all GPUs in the output of `nvidia-smi`, and the sum of their used bytes."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    return fmean(float(busy) for busy, _ in rows) / 100, sum(int(float(used)) for _, used in rows) * _MIB


class GpuUse:
    """A context manager that samples inside its block; without `nvidia-smi` its figures are unknown."""

    def __init__(self, *, has_gpu: bool) -> None:
        self._samples: list[tuple[float, int]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if has_gpu else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def utilization_ratio(self) -> float | None:
        """Mean utilisation, 0..1."""
        return fmean(busy for busy, _ in self._samples) if self._samples else None

    @property
    def memory_bytes(self) -> int | None:
        """Largest memory in use."""
        return max(used for _, used in self._samples) if self._samples else None

    def _sample(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            try:
                process = subprocess.run(_QUERY, capture_output=True, text=True, timeout=5.0, check=True)
                self._samples.append(sums(process.stdout))
            except (OSError, subprocess.SubprocessError, ValueError):
                continue

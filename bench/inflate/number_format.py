"""Numbers as a model file holds them: float32, or bfloat16 as the upper half of one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

INT64 = "I64"
BYTES = {"BF16": 2, "F32": 4, INT64: 8}
"""Bytes of a number, by its name in a safetensors file."""


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How weights are stored; `name` is `bfloat16` or `float32`."""

    name: str

    @property
    def is_short(self) -> bool:
        """Whether numbers are rounded to 8 significant bits."""
        return self.name == "bfloat16"

    @property
    def code(self) -> str:
        """The name in a safetensors file."""
        return "BF16" if self.is_short else "F32"

    @property
    def stored(self) -> type[np.generic]:
        """The type of an array that holds such numbers."""
        return np.uint16 if self.is_short else np.float32

    def store(self, values: Any) -> Array:
        """Return float32 values in this format, rounded to the nearest, ties to even."""
        exact = np.ascontiguousarray(values, np.float32)
        if not self.is_short:
            return exact
        bits = exact.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def load(self, stored: Array) -> Array:
        """Return stored numbers as float32 values."""
        if not self.is_short:
            return stored
        return (stored.astype(np.uint32) << 16).view(np.float32)

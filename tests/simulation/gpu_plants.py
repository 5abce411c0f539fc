"""Step times of GPUs, fitted to published figures: every output must say that it is a simulation. Pure data.

No GPU was measured. `gpu_plants.json` has each plant's parameters, the published figures with their sources, and the
assumptions. A step with `n` running requests, `m` verified tokens and `s` slots in all takes

    base + per_request n + experts (1 - exp(-m / experts_tokens)) + per_token m + [s > 0] (drafter + per_slot s)

milliseconds: a mixture of experts reads more of its experts the more tokens a step verifies, until it reads them all.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent / "gpu_plants.json"
_MS = 1000.0


@dataclass(frozen=True, slots=True)
class GpuPlant:
    """One plant: the parameters of its step time in ms, and their sources."""

    name: str
    hardware: str
    target: str
    base: float
    per_request: float
    experts: float
    per_token: float
    drafter: float
    per_slot: float
    experts_tokens: float

    def step_s(self, n: float, m: float, slots: float, prefill: float = 0.0, context: float = 0.0) -> float:
        """Return the seconds of a step of `n` requests with `m` verified tokens and `slots` of the drafter in all.

        A prefilled token takes the time of a verified one. Context takes no time, as no published figure has it.
        """
        del context
        drafter = self.drafter + self.per_slot * slots if slots else 0.0
        read = self.experts * (1.0 - math.exp(-(m + prefill) / self.experts_tokens))
        plain = self.base + self.per_request * n + read + self.per_token * (m + prefill)
        return (plain + drafter) / _MS

    def catch_up_s(self, rows: float) -> float:
        """Return the seconds to catch up `rows` rows: a pass of the drafter with a slot for each row."""
        return (self.drafter + self.per_slot * rows) / _MS

    def tokens_per_s(self, n: int, k: int, acceptance_length: float) -> float:
        """Return the output tokens per second of `n` requests at one K, each with `acceptance_length` tokens a step."""
        return n * acceptance_length / self.step_s(n, n * (1 + k), n * k)


def plants() -> dict[str, GpuPlant]:
    """Return the plants by name."""
    return {
        item["name"]: GpuPlant(
            item["name"],
            item["hardware"],
            item["target"],
            **item["parameters_ms"],
            experts_tokens=item["experts_tokens"],
        )
        for item in json.loads(DOCUMENT.read_text())["plants"]
    }

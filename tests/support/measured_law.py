"""An engine's law with prices of steps and acceptance, and what it is fed with."""

from types import SimpleNamespace
from typing import Any

from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective

K_MAX, STATIC = 7, 3
HIGH, LOW = 7, 1


def request(band: int, label: str = "default", drafts: int = 5, context: int = 100) -> Any:
    acceptance = SimpleNamespace(code=band if drafts else band | UNPROBED)
    return SimpleNamespace(label=label, acceptance=acceptance, context=context)


def step_s(n: int, m: int, slots: int) -> float:
    return 4.6e-3 + 1.1e-4 * m + (2e-3 + 1.5e-4 * n + 6.5e-5 * slots if slots else 0.0)


def measured(law: EngineLaw, k_max: int = K_MAX) -> EngineLaw:
    """Let the law know what steps take, and that there is traffic."""
    for n in (1, 4, 8, 16, 32):
        for k in (0, 2, k_max):
            law.learn([(StepShape(n, n * (1 + k), n * k), step_s(n, n * (1 + k), n * k), 0)] * 30)
    law.learn((), counted(HIGH, 0.97, k=k_max))
    law.refresh()
    return law


def follow(law: EngineLaw, classes: dict[str, ClassGuidance] | None = None) -> None:
    law.follow(Guidance(Objective.THROUGHPUT, {"default": ClassGuidance(), **(classes or {})}))


def counted(band: int, acceptance: float, drafts: int = 100, k: int = K_MAX) -> Evidence:
    """What so many drafts of `k` come to."""
    evidence, left = Evidence(), float(drafts)
    evidence.drafts["default", band, k] = drafts
    for position in range(1, k + 1):
        evidence.trials[band, position] = round(left)
        left *= acceptance
        evidence.accepts[band, position] = round(left)
    return evidence

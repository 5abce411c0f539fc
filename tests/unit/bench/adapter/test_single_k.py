"""What is printed of a load: the law beside the best single K, from rates of the same rounds."""

import json
from typing import Any

import pytest

from specpilot.bench.adapter.single_k import LOADS, measure_single_k
from specpilot.demo_model import DEMO_MODEL

RATES = {"law": [110.0, 90.0, 100.0], "0": [100.0, 100.0, 100.0], "1": [50.0, 60.0, 70.0]}


class Measured:
    """In the place of an engine: answers with these rates, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def run(self, kind: str, within_s: float, **job: Any) -> dict[str, Any]:
        self.asked.append(job | {"kind": kind, "within_s": within_s})
        return {"steps_ms": {}, "rates": RATES, "k": [0.5], "prices_ns": {}}


def test_the_law_is_beside_the_best_single_k_of_the_same_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    worker = Measured()
    measure_single_k(worker, 1, DEMO_MODEL / "prompts", ["json"], rounds=3)
    *_, ratio, figures = capsys.readouterr().out.splitlines()
    assert "over the best single K (0): 1.000 (0.900 to 1.100)" in ratio
    assert json.loads(figures)["json"]["law_over"] == {"0": 1.0, "1": 1.5}
    [job] = worker.asked
    assert job["within_s"] > 3 * 3 * 5.0
    assert job["chats"].keys() == {kind.data for kind in LOADS["json"]}

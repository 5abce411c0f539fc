"""The report of a sweep's cells."""

from typing import Any

import pytest

from specpilot.bench.sweep.report import Arm, Results, markdown

SPEEDS = {
    ("none", None): 100.0,
    ("eagle3", 1): 110.0,
    ("eagle3", 3): 120.0,
    ("p-eagle", 1): 110.0,
    ("p-eagle", 3): 180.0,
    ("adaptive", None): 198.0,
}
PLACE = ("code", "c8")


Cell = dict[str, Any]


def cell(system: str, k: int | None, load: int, repetition: int, rate: float, **more: Any) -> Cell:
    name = system if k is None else f"{system}-k{k}"
    found = {
        "label": name, "arm": name, "system": system, "k": k, "dataset": "code", "load": f"c{load}",
        "repetition": repetition, "model_id": "demo", "failed": 0, "errors": [], "output_throughput": rate,
        "median_ttft_ms": 5.0, "p99_ttft_ms": 7.0, "request_goodput": None,
    }  # fmt: skip
    if k:
        found["spec_decode_acceptance_length"] = 1.0 + 0.5 * k
    return found | more


def sweep() -> list[Cell]:
    """Two loads, three repetitions on a machine that is twice as fast in the second."""
    pace = {1: 1.0, 2: 2.0, 3: 0.9}
    return [
        cell(system, k, load, repetition, speed * pace[repetition] * load)
        for (system, k), speed in SPEEDS.items()
        for load in (1, 8)
        for repetition in (1, 2, 3)
    ]


def test_ratios_are_taken_within_a_repetition_so_the_machines_pace_cancels_out() -> None:
    results = Results(sweep())
    one, other = Arm("p-eagle-k3", "p-eagle", 3), Arm("none", "none", None)
    assert sorted(results.values(one, PLACE).values()) == [180 * 8 * 0.9, 180 * 8, 180 * 8 * 2]
    assert results.ratios(one, other, PLACE) == [pytest.approx(1.8)] * 3
    half = Results([item for item in sweep() if item["arm"] != "none" or item["repetition"] == 1])
    assert len(half.ratios(one, other, PLACE)) == 1
    assert half.ratios(one, Arm("p-eagle-k9", "p-eagle", 9), PLACE) == []


def test_the_report_says_every_arm_the_best_k_and_what_adaptive_adds() -> None:
    text = markdown(sweep())
    row = "| code | 8 in flight | p-eagle-k3 | 1,440 (1,296 to 2,880) | 1.80 (1.80 to 1.80) | 2.50 | 5.0 | 7.0 |"
    assert row in text
    assert "| code | 1 in flight | p-eagle-k3 | 1.10 (1.10 to 1.10) | eagle3-k3 | 1.65 (1.65 to 1.65) |" in text
    assert "good requests" not in text
    assert "nan" not in text
    assert "None" not in text


def test_where_an_arm_is_missing_what_rests_on_it_is_left_out_or_a_dash() -> None:
    assert "Adaptive" not in markdown([item for item in sweep() if item["system"] == "none"])
    only = markdown([cell("mine", None, 1, 1, 5.0)])
    assert "| code | 1 in flight | mine | 5 | 5.0 | 7.0 |" in only
    against = markdown([item for item in sweep() if item["system"] in ("eagle3", "adaptive")])
    assert "| code | 1 in flight | - | - | eagle3-k3 | 1.65 (1.65 to 1.65) |" in against
    without = markdown([item for item in sweep() if item["system"] in ("none", "p-eagle")])
    assert "| code | 8 in flight | p-eagle-k3 | - | - | - |" in without


def test_failed_requests_are_reported_with_their_first_error() -> None:
    text = markdown([cell("none", None, 1, 1, 50.0, failed=2, errors=["status 500: out of memory"])])
    assert "| none | 2 | status 500: out of memory |" in text

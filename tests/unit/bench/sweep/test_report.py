"""The report of a sweep's cells: texts, tables and plots."""

import re
from typing import Any

import pytest

from specpilot.bench.sweep import plots, report
from specpilot.bench.sweep.results import Results

SPEEDS = {
    ("none", None): 100.0,
    ("eagle3", 1): 110.0,
    ("eagle3", 3): 120.0,
    ("p-eagle", 1): 110.0,
    ("p-eagle", 3): 180.0,
    ("adaptive", None): 198.0,
}


Cell = dict[str, Any]


def cell(system: str, k: int | None, concurrency: int, repetition: int, rate: float, **more: Any) -> Cell:
    name = system if k is None else f"{system}-k{k}"
    found = {
        "label": name, "arm": name, "system": system, "k": k, "dataset": "code", "max_concurrency": concurrency,
        "request_rate": "inf", "repetition": repetition, "model_id": "demo", "num_prompts": 8, "failed": 0,
        "errors": [],
        "output_throughput": rate, "p50_ttft_ms": 5.0, "p95_ttft_ms": 6.0, "p99_ttft_ms": 7.0,
    }  # fmt: skip
    if k:
        found["spec_decode_acceptance_length"] = 1.0 + 0.5 * k
    return found | more


def sweep() -> list[dict[str, Any]]:
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
    rate = results.figure("p-eagle-k3", "code", "c8", "output_throughput")
    ratio = results.ratio("p-eagle-k3", "none", "code", "c8")
    assert rate is not None
    assert ratio is not None
    assert (rate.low, rate.median, rate.high) == (180 * 8 * 0.9, 180 * 8, 180 * 8 * 2)
    assert [pytest.approx(1.8)] * 3 == [ratio.low, ratio.median, ratio.high]


def test_a_ratio_without_its_other_half_is_unknown() -> None:
    results = Results([item for item in sweep() if item["arm"] != "none" or item["repetition"] == 1])
    ratio = results.ratio("p-eagle-k3", "none", "code", "c1")
    assert ratio is not None
    assert ratio.repetitions == 1
    assert results.ratio("p-eagle-k3", "p-eagle-k9", "code", "c1") is None
    assert results.figure("none", "code", "c64", "output_throughput") is None


def test_the_report_says_the_speed_ups_the_best_k_and_what_adaptive_adds() -> None:
    text = report.markdown(report.sections(Results(sweep())))
    assert "| p-eagle-k3 | 1.80 (1.80 to 1.80) | 1.80 (1.80 to 1.80) |" in text
    assert "| code, K = 3 | 1.50 (1.50 to 1.50) | 1.50 (1.50 to 1.50) |" in text
    assert "| code | 3 | 3 |" in text  # best static K
    assert "| code, adaptive over the best K of EAGLE-3 | 1.65 (1.65 to 1.65) | 1.65 (1.65 to 1.65) |" in text
    assert "| eagle3-k1 | 1.80 | 1.80 |" in text  # adaptive over each static K
    assert "| eagle3-k3 | 1.65 | 1.65 |" in text
    assert "| the best K of EAGLE-3 | 1.65 | 1.65 |" in text
    assert "| the best static K | 1.10 | 1.10 |" in text
    assert "| eagle3-k3 | 2.50 |" in text  # acceptance length
    assert "nan" not in text
    assert "None" not in text


def test_where_an_arm_is_missing_its_sections_are_left_out() -> None:
    text = report.markdown(report.sections(Results([item for item in sweep() if item["system"] == "none"])))
    assert "Speed-up" in text
    assert "Adaptive" not in text
    assert "over EAGLE-3" not in text
    only = report.markdown(report.sections(Results([cell("mine", None, 1, 1, 5.0)])))
    assert "| mine | 5 |" in only
    assert "Speed-up" not in only


def test_adaptive_k_is_held_against_eagle_3_where_nobody_measured_p_eagle() -> None:
    results = Results([item for item in sweep() if item["system"] in ("eagle3", "adaptive")])
    text = report.markdown(report.sections(results))
    assert "| code, adaptive over the best K of EAGLE-3 | 1.65" in text
    assert "each at its best K" not in text
    assert "| the best K of EAGLE-3 | 1.65 | 1.65 |" in text
    assert "the best static K |" not in text
    assert "adaptive" in plots.draw(results)


def test_failed_requests_are_reported_with_their_first_error() -> None:
    cells = [cell("none", None, 1, 1, 50.0, failed=2, errors=["status 500: out of memory"])]
    assert "| none | 2 | 8 | status 500: out of memory |" in report.markdown(report.sections(Results(cells)))


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_shows() -> None:
    cells = [*sweep(), cell("none", None, 1, 4, 50.0, failed=1, errors=["<script>"])]
    results = Results(cells)
    drawn = plots.draw(results)
    assert set(drawn) == {"speed-up-code", "acceptance", "best-k", "adaptive"}
    html = report.page(report.sections(results), drawn)
    assert html.count("<svg") == 4
    assert "<script>" not in html
    assert not re.search(r'(?:src|href)="https?://', re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL))

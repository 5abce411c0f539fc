"""Figures that make a line fail, and the tables of the report."""

from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.gpu_check import exact_parts, report, step_parts
from specpilot.bench.gpu_check.check import FAILED, MEASURED, PASSED, SKIPPED, Check, PartError
from specpilot.bench.gpu_check.step_parts import expected
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.policy.codec import to_plain

SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
GRAPHS = Graphs("FULL_AND_PIECEWISE", SIZES, {1: (1, 2, 4, *range(8, 257, 8)), 8: tuple(range(8, 513, 8))}, SIZES)


@pytest.mark.parametrize(
    ("running", "k", "found"),
    [  # as vLLM's own dispatcher finds graphs, see tests/unit/engine_adapter/vllm/v1/test_graphs.py
        (1, 0, ("FULL", 1)),
        (1, 1, ("PIECEWISE", 2)),
        (3, 0, ("FULL", 4)),
        (3, 3, ("PIECEWISE", 16)),
        (64, 7, ("FULL", 512)),
        (65, 7, ("NONE", 520)),
        (65, 6, ("PIECEWISE", 464)),
        (250, 0, ("FULL", 256)),
    ],
)
def test_a_step_should_find_what_the_record_tells(running: int, k: int, found: tuple[str, int]) -> None:
    assert expected(GRAPHS, running, k) == found


def test_other_modes() -> None:
    assert expected(Graphs("FULL", SIZES), 3, 3) == ("FULL", 16)
    assert expected(Graphs("FULL_DECODE_ONLY", (), {1: (1, 2, 4)}), 3, 3) == ("NONE", 12)
    varlen = Graphs("FULL_AND_PIECEWISE", SIZES, {1: (1, 2, 4)}, varlen=(8, 16))
    assert [expected(varlen, 3, k) for k in (0, 3, 7)] == [("FULL", 4), ("FULL", 16), ("PIECEWISE", 24)]


def row(running: int, *ks: int, kind: str = "uniform", **more: Any) -> dict[str, Any]:
    return {
        "kind": kind, "running": running, "ks": [*ks], "step_ms": 2.0, "step_ms_range": [1.9, 2.1],
        "tokens_per_s": 100.0, "pace_ms": 0.7, "is_typical": True, "graphs": [], **more,
    }  # fmt: skip


def measurement(running: int, *ks: int, kind: str = "uniform", **more: Any) -> dict[str, Any]:
    cell = {"kind": kind, "running": running, "ks": [*ks]}
    return {"cell": cell, "step_ms": 2.0, "pace_ms": 0.7, "tokens_per_s": 100.0, "graphs": [], **more}


@pytest.mark.parametrize(
    ("graphs", "verdict"),
    [
        ([[3, 8, "FULL", 24, 40]], PASSED),
        ([[3, 8, "FULL", 24, 40], [3, 5, "PIECEWISE", 16, 9]], PASSED),  # a request with a shorter draft
        ([[3, 8, "PIECEWISE", 24, 40]], FAILED),
        ([[3, 8, "FULL", 32, 40]], FAILED),
        ([[3, 8, "FULL", 24, 20], [3, 8, "NONE", 24, 20]], FAILED),
        ([], FAILED),
    ],
)
def test_steps_that_do_not_find_the_graphs_of_the_record_fail(graphs: list[list[Any]], verdict: str) -> None:
    line = step_parts.as_recorded("FULL", {"graphs": to_plain(GRAPHS), "cells": [row(3, 7, graphs=graphs)]})
    assert line.verdict == verdict


class Answers(Check):
    """A check of a machine with a GPU, whose engines give the test's answers."""

    answer: Any
    known: dict[str, Any]

    def engine(self, *_: Any, **__: Any) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict(self.answer)

    def texts(self, count: int) -> list[str]:
        return ["text"] * count

    def data(self, name: str) -> dict[str, Any]:
        return {"machine": {"device": "a GPU", "unfit": None}, "replies without speculation": self.known}.get(name, {})


LIKELIEST = [[[[1, -0.1], [9, -3.0]], [[2, -0.3], [7, -0.31]]], [[[3, -0.1], [8, -4.0]], [[4, -0.6], [5, -0.7]]]]


@pytest.fixture
def check(tmp_path: Path) -> Answers:
    check = Answers(tmp_path, tmp_path, tmp_path, tmp_path, 7, [0, 7], [], None, None, None)
    check.known = {"ids": {"plain": [[1, 2], [3, 4]]}, "likeliest": LIKELIEST, "is_invariant": False}
    return check


def test_a_reply_that_parts_from_a_likely_token_fails_its_k_alone(check: Answers) -> None:
    check.answer = {"ids": {"0": [[1, 2], [3, 4]], "7": [[1, 2], [3, 5]], "changing": [[1, 2], [3, 4]]}, "start_s": 1.0}
    lines, data = exact_parts.exact(check, is_async=True)
    assert [line.verdict for line in lines] == [PASSED, FAILED, PASSED]
    assert lines[1].text == "1 of 2 differ; gap where they part, 0.02 allowed: reply 1 at token 1: 0.1000"
    assert data["partings"]["7"] == [[1, 1, pytest.approx(0.1)]]


def test_a_reply_that_parts_where_two_tokens_are_as_likely_passes_unless_sums_are_invariant(check: Answers) -> None:
    check.answer = {"ids": {"7": [[1, 7], [3, 4]]}, "start_s": 1.0}
    [line], _ = exact_parts.exact(check, is_async=True)
    assert (line.verdict, line.text.split(";")[0]) == (PASSED, "1 of 2 differ")
    check.known["is_invariant"] = True
    [line], _ = exact_parts.exact(check, is_async=True)
    assert (line.verdict, line.text) == (FAILED, "1 of 2 differ")


def test_a_token_whose_probability_is_unknown_fails(check: Answers) -> None:
    check.answer = {"ids": {"7": [[1, 2], [6, 4]]}, "start_s": 1.0}
    [line], _ = exact_parts.exact(check, is_async=True)
    assert line.verdict == FAILED
    assert line.text.endswith("reply 1 at token 0: more than 3.9000")


def test_a_vllm_without_batch_invariance_is_compared_by_the_gap(check: Answers) -> None:
    plain = {"ids": {"plain": [[1]]}, "likeliest": [[[[1, 0.0]]]], "start_s": 1.0}
    tried = list[bool]()

    def engine(*_: Any, **__: Any) -> dict[str, Any]:
        variables = _[3]
        tried.append("VLLM_BATCH_INVARIANT" in variables)
        if tried[-1]:
            raise PartError("no such kernel")
        return plain

    check.__class__ = type("Refusing", (Answers,), {"engine": lambda self, *rest, **more: engine(*rest, **more)})
    [line], data = exact_parts.reference(check)
    assert tried == [True, False]
    assert line.text == "1 replies, not batch-invariant: no such kernel"
    assert data["is_invariant"] is False
    check.batch_invariant = "off"
    tried.clear()
    exact_parts.reference(check)
    assert tried == [False]


@pytest.mark.parametrize(("accepted", "verdict"), [(90, PASSED), (80, FAILED), (0, FAILED)])
def test_drafts_that_are_no_longer_accepted_after_a_spell_fail(check: Answers, accepted: int, verdict: str) -> None:
    ways = {"never off": 100, "caught up": accepted, "not caught up": 50}
    check.answer = {way: {"verified": 200, "accepted": count, "ids": [[1]]} for way, count in ways.items()}
    lines, _ = exact_parts.catching_up(check, has_graphs=True)
    assert [line.verdict for line in lines] == [verdict, MEASURED]
    assert lines[1].text.startswith("0 of 1 replies differ")


@pytest.mark.parametrize(
    ("own", "compilations", "verdicts"),
    [({}, [], [PASSED, PASSED]), ({"rows.py:9": 3}, [], [FAILED, PASSED]), ({}, ["a kernel"], [PASSED, FAILED])],
)
def test_waiting_and_compiling_fail(
    check: Answers, own: dict[str, int], compilations: list[str], verdicts: list[str]
) -> None:
    check.answer = {"steps": 9, "waits": {"/vllm/x.py:1": 2} | own, "own": own, "compilations": compilations}
    lines, _ = exact_parts.waits(check)
    assert [line.verdict for line in lines] == verdicts
    assert "2 of vLLM's own" in lines[0].text


class OnACpu(Answers):
    def data(self, name: str) -> dict[str, Any]:
        return {"device": None, "unfit": None} if name == "machine" else {}


def test_what_needs_cuda_is_skipped_without_it_and_says_so(tmp_path: Path) -> None:
    check = OnACpu(tmp_path, tmp_path, tmp_path, tmp_path, 7, [0, 7], [], None, None, None)
    outcomes = [
        exact_parts.exact(check, is_async=True),
        exact_parts.catching_up(check, has_graphs=True),
        exact_parts.waits(check),
        step_parts.adapter_steps(check, "PIECEWISE"),
    ]
    lines = [line for found, _ in outcomes for line in found]
    assert len(lines) == 5
    assert {line.verdict for line in lines} == {SKIPPED}
    assert all(line.text.startswith("no CUDA device") for line in lines)


ARRIVAL = {
    "running": 31, "k": 0, "every": 12, "prompt_tokens": 24, "reply_tokens": 4, "pace_ms": 0.7, "quiet_ms": 5.0,
    "excess_ms": 7.25, "excess_ms_quartiles": [6.5, 8.0], "by_offset_ms": [12.0, 5.2, 5.1, *[5.0] * 9], "periods": 3,
}  # fmt: skip


def outcome(*measured: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "measured": [*measured], "arrivals": [], "device": [], "stopped": None, "measuring_s": 9.0,
        "graph_mode": "FULL", "largest_graph": 512, "attention": ["FLASH_ATTN"], "graphs": None, "start_graphs": [],
        "memory": None, "start_s": 60.0, **more,
    }  # fmt: skip


def test_step_times_say_what_mixed_k_and_arrivals_cost(check: Answers) -> None:
    check.answer = outcome(
        measurement(8, 3, step_ms=5.0),
        measurement(8, 0, 6, kind="halves", step_ms=5.5),
        measurement(8, 0, 2, 4, 6, kind="random", step_ms=6.0),
        arrivals=[ARRIVAL, ARRIVAL | {"excess_ms": 7.5}],
        device=[
            {"cell": {"kind": "uniform", "running": 8, "ks": [3]}, "busy_ms": 4.0, "kernels": 700.0, "launches": 90.0}
        ],
    )
    lines, data = step_parts.adapter_steps(check, "FULL")
    texts = {line.name: line.text for line in lines}
    assert texts["mixed K over the uniform step of as many tokens, FULL"] == (
        "8 with K halves of 0, 6: 1.10; 8 with K random of 0, 2, 4, 6: 1.20"
    )
    assert texts["an arrival of 24 tokens, 31 running at K = 0, FULL"] == (
        "7.25 ms more (6.50 to 8.00) beside steps of 5.00 ms; then 7.50 ms more (6.50 to 8.00) beside steps of 5.00 ms"
    )
    assert lines[0].verdict == PASSED
    assert {line.verdict for line in lines[1:]} == {MEASURED}
    assert (data["cells"][0]["busy_ms"], data["cells"][1]["busy_ms"]) == (4.0, None)


def test_what_an_engine_measured_before_it_was_ended_is_kept(check: Answers) -> None:
    check.answer = PartError("did not end within 9 s", outcome(measurement(8, 3)), is_cut=True)
    lines, data = step_parts.adapter_steps(check, "FULL")
    assert [line.verdict for line in lines][:2] == [FAILED, PASSED]
    assert data["cells"][0]["step_ms"] == 2.0
    check.answer = PartError("did not start", outcome())
    with pytest.raises(PartError):
        step_parts.adapter_steps(check, "FULL")


def test_the_mode_of_graphs_and_their_largest_size_go_to_vllm(check: Answers) -> None:
    asked = dict[str, Any]()

    def engine(*rest: Any, **job: Any) -> dict[str, Any]:
        asked.update(rest[1])
        return outcome(measurement(8, 3))

    check.__class__ = type("Asked", (Answers,), {"engine": lambda self, *rest, **job: engine(*rest, **job)})
    for running, size in ((64, None), (96, 768), (128, 1024), (256, 1024)):  # as large as the product makes them
        check.running = [1, running]
        asked.clear()
        step_parts.adapter_steps(check, "default")
        assert asked.get("compilation_config") == (size and {"max_cudagraph_capture_size": size})
        assert asked["scheduler_cls"].endswith("AsyncScheduler")
    check.running, check.capture_size = [], 1024
    step_parts.adapter_steps(check, "FULL")
    assert asked["compilation_config"] == {"cudagraph_mode": "FULL", "max_cudagraph_capture_size": 1024}
    asked.clear()
    step_parts.stock_steps(check, speculates=True)
    assert asked["speculative_config"]["num_speculative_tokens"] == 7
    assert asked["compilation_config"] == {"max_cudagraph_capture_size": 1024}
    assert "scheduler_cls" not in asked


def test_step_times_stand_beside_those_without_speculation() -> None:
    def document(part: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"part": part, "seconds": 60.0, "lines": [], "data": outcome(**more) | {"cells": [*rows]}}

    page = report.markdown(
        [
            document("steps, without speculation", row(1), row(8)),
            document(
                "steps, FULL",
                row(1, 0, step_ms=2.5),
                row(1, 7, tokens_per_s=250.0, graphs=[[1, 8, "FULL", 8, 24], [1, 5, "FULL", 8, 2]]),
                row(8, 0, host_ms=1.5, waiting_ms=0.4, span_ms=1.75, busy_ms=1.25, kernels=700.0, launches=90.0),
                row(8, 7, step_ms=None, step_ms_range=None, tokens_per_s=None, is_typical=False),
                arrivals=[ARRIVAL],
                start_graphs=[
                    {"k": None, "graphs": 50, "seconds": 3.0, "mib": 900.0},
                    {"k": 0, "graphs": 35, "seconds": 2.5, "mib": 120.4},
                ],
            ),
        ],
        [],
        2400.0,
    )
    assert "| running | without speculation | FULL, K = 0 | FULL, K = 7 |" in page
    assert "| 1 | 2.00 (1.00) | 2.50 (1.00) | 2.00 (2.50) |" in page
    assert "| 8 | 2.00 (1.00) | 2.00 (1.00) | - |" in page
    assert "| 1 | 7 | 2.00 | 1.90 to 2.10 | - | - | - | - | - | - | 0.70 | FULL 8 |" in page
    assert "| 8 | 0 | 2.00 | 1.90 to 2.10 | 1.50 | 0.40 | 1.75 | 1.25 | 700 | 90 | 0.70 | - |" in page
    assert "| 8 | 7 | - | - to - | - | - | - | - | - | - | 0.70 (unusual) | - |" in page
    assert "| 31 | 0 | 5.00 | 7.25 (6.50 to 8.00) | 12.0 5.2 5.1 5.0 5.0 5.0 | 0.70 |" in page
    assert "| any mix | 50 | 3.0 | 900 |\n| 0 | 35 | 2.5 | 120 |" in page

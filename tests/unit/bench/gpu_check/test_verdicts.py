"""What figures become a line that fails, and the tables of the report."""

from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.gpu_check import parts, report
from specpilot.bench.gpu_check.expected_graph import expected
from specpilot.bench.gpu_check.line import FAILED, PASSED, SKIPPED
from specpilot.bench.gpu_check.parts import Check
from specpilot.policy.codec import to_plain
from specpilot.policy.graphs import Graphs

SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
GRAPHS = Graphs("FULL_AND_PIECEWISE", SIZES, {1: (1, 2, 4, *range(8, 257, 8)), 8: tuple(range(8, 513, 8))}, SIZES)


@pytest.mark.parametrize(
    ("running", "k", "found"),
    [  # as vLLM's own dispatcher finds them in tests/unit/engine_adapter/vllm/test_graphs.py
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


def cell(running: int, k: int, *graphs: list[Any]) -> dict[str, Any]:
    return {"running": running, "k": k, "step_ms": 2.0, "tokens_per_s": 100.0, "graphs": [*graphs]}


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
    line = parts._as_recorded("FULL_AND_PIECEWISE", {"graphs": to_plain(GRAPHS), "cells": [cell(3, 7, *graphs)]})
    assert line.verdict == verdict
    assert parts._as_recorded("PIECEWISE", {"graphs": None, "cells": []}).verdict == FAILED


class Answers(Check):
    """A check of a machine with a GPU, whose engines say what the test lets them."""

    answer: dict[str, Any]

    def engine(self, *_: Any, **__: Any) -> dict[str, Any]:
        return self.answer

    def texts(self, count: int) -> list[str]:
        return ["text"] * count

    def data(self, name: str) -> dict[str, Any]:
        known = {
            "machine": {"device": "a GPU", "unfit": None},
            "replies without speculation": {"ids": {"plain": [[1, 2], [3, 4]]}},
        }
        return known.get(name, {})


@pytest.fixture
def check(tmp_path: Path) -> Answers:
    return Answers(tmp_path, tmp_path, tmp_path, tmp_path, 7, [0, 7], [], None, None, None)


def test_a_reply_that_differs_fails_its_k_alone(check: Answers) -> None:
    check.answer = {"ids": {"0": [[1, 2], [3, 4]], "7": [[1, 2], [3, 5]], "changing": [[1, 2], [3, 4]]}, "start_s": 1.0}
    lines, _ = parts.exact(check, is_async=True)
    assert [line.verdict for line in lines] == [PASSED, FAILED, PASSED]
    assert lines[1].text == "1 of 2 differ"


@pytest.mark.parametrize(("accepted", "verdict"), [(90, PASSED), (80, FAILED), (0, FAILED)])
def test_drafts_that_are_no_longer_accepted_after_a_spell_fail(check: Answers, accepted: int, verdict: str) -> None:
    ways = {"never off": 100, "caught up": accepted, "not caught up": 50}
    check.answer = {way: {"verified": 200, "accepted": count, "ids": [[1]]} for way, count in ways.items()}
    lines, _ = parts.catching_up(check, has_graphs=True)
    assert [line.verdict for line in lines] == [verdict, PASSED]


@pytest.mark.parametrize(
    ("own", "compilations", "verdicts"),
    [({}, [], [PASSED, PASSED]), ({"rows.py:9": 3}, [], [FAILED, PASSED]), ({}, ["a kernel"], [PASSED, FAILED])],
)
def test_waiting_and_compiling_fail(
    check: Answers, own: dict[str, int], compilations: list[str], verdicts: list[str]
) -> None:
    check.answer = {"steps": 9, "waits": {"/vllm/x.py:1": 2} | own, "own": own, "compilations": compilations}
    lines, _ = parts.waits(check)
    assert [line.verdict for line in lines] == verdicts
    assert "2 of vLLM's own" in lines[0].text


class OnACpu(Answers):
    def data(self, name: str) -> dict[str, Any]:
        return {"device": None, "unfit": None} if name == "machine" else {}


def test_what_needs_cuda_is_skipped_without_it_and_says_so(tmp_path: Path) -> None:
    check = OnACpu(tmp_path, tmp_path, tmp_path, tmp_path, 7, [0, 7], [], None, None, None)
    outcomes = [
        parts.exact(check, is_async=True),
        parts.catching_up(check, has_graphs=True),
        parts.waits(check),
        parts.step_times(check, "PIECEWISE", speculates=True),
    ]
    lines = [line for found, _ in outcomes for line in found]
    assert len(lines) == 5
    assert {line.verdict for line in lines} == {SKIPPED}
    assert all(line.text.startswith("no CUDA device") for line in lines)


def test_step_times_stand_beside_those_without_speculation() -> None:
    def document(part: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
        taken = [{"k": 0, "graphs": 35, "seconds": 2.5, "mib": 120.4}]
        data = {"cells": cells, "start_graphs": taken if "without" not in part else []}
        return {"part": part, "seconds": 60.0, "lines": [], "data": data}

    cells = [
        cell(1, 0) | {"step_ms": 2.5},
        cell(1, 7) | {"tokens_per_s": 250.0},
        cell(8, 0),
        {"running": 8, "k": 7, "step_ms": None},
    ]
    page = report.markdown(
        [
            document("steps, FULL_AND_PIECEWISE, without speculation", [cell(1, None), cell(8, None)]),  # type: ignore[arg-type]
            document("steps, FULL_AND_PIECEWISE", cells),
        ],
        [],
        2400.0,
    )
    assert "## Milliseconds a step: FULL_AND_PIECEWISE" in page
    assert "| 1 | 2.00 | 2.50 (1.00) | 2.00 (2.50) |" in page
    assert "| 8 | 2.00 | 2.00 (1.00) | - |" in page
    assert "| 0 | 35 | 2.5 | 120 |" in page

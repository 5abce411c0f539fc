"""`specpilot bench sweep` against the running system, engine and gateway: real replies, real counters."""

import json
from pathlib import Path

import pytest

from specpilot.bench.sweep import command
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_a_sweep_over_a_real_engine_and_gateway_adds_up(stack: Stack, tmp_path: Path) -> None:
    endpoints = f"adaptive={stack.engine},gateway={stack.gateway}"
    flags = ["--data", "json,multi-turn", "--concurrency", "4", "--repetitions", "1", "--num-prompts", "8"]
    flags += ["--output-tokens", "16", "--output-spread", "0", "--settle-s", "0", "--out", str(tmp_path)]
    command.main(["--endpoints", endpoints, *flags])
    found = [json.loads(path.read_text()) for path in (tmp_path / "cells").iterdir()]
    assert len(found) == 4
    for cell in found:
        requests = 12 * (4 if cell["dataset"] == "multi-turn" else 1)  # 12 conversations
        assert (cell["completed"], cell["failed"]) == (requests, 0)
        assert cell["total_output_tokens"] == requests * 16  # replies run to their length
        assert cell["model_id"] == "demo"
        assert 0 < cell["p50_ttft_ms"] <= cell["p50_e2el_ms"]
    [json_cell] = [cell for cell in found if (cell["arm"], cell["dataset"]) == ("adaptive", "json")]
    rates = json_cell["spec_decode_per_position_acceptance_rates"]
    assert json_cell["spec_decode_acceptance_length"] == pytest.approx(1 + sum(rates))

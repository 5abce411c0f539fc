"""The simulated engines export the controller's metrics, and Redis' CPU is read in seconds."""

import pytest

from specpilot.bench.fleet.simulated_engines import CLASSES, K_MAX, model_of, page
from specpilot.bench.fleet.sizing import markdown, per_second
from specpilot.controller.estimation.observation import LABELS
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy import engine_metrics as names
from specpilot.policy.bands import BANDS


def test_a_page_says_all_that_the_law_reads_and_its_counters_grow() -> None:
    before, after = (PageReader().read(page("model-1", seconds)) for seconds in (60.0, 61.0))
    assert {series.metric for series in before} == set(LABELS) - {
        name for name in LABELS if name.startswith("specpilot_engine_catch_up")
    }
    assert before.keys() == after.keys()
    gauges = {names.RUNNING_DECODES, names.STATIC_BREAKS_SLO}  # fmt: skip
    assert all(after[series] >= value for series, value in before.items())
    assert all(after[series] > value for series, value in before.items() if value and series.metric not in gauges)
    assert sum(series.metric == names.TRIALS for series in before) == BANDS * K_MAX
    assert {series.labels[0] for series in before if series.metric == names.DRAFTS} == set(CLASSES)


def test_engines_share_models() -> None:
    assert [model_of(number, 3) for number in range(4)] == ["model-0", "model-1", "model-2", "model-0"]


def test_redis_accounts() -> None:
    zero = dict.fromkeys(
        (
            "used_cpu_sys",
            "used_cpu_user",
            "total_commands_processed",
            "total_net_input_bytes",
            "total_net_output_bytes",
        ),
        0.0,
    )
    after = {**zero, "used_cpu_sys": 0.1, "used_cpu_user": 0.3, "total_commands_processed": 20.0}
    assert per_second(zero, after, 2.0) == pytest.approx(
        {"cpu_ms": 200.0, "commands": 10.0, "bytes_in": 0.0, "bytes_out": 0.0}
    )
    parts = {name: {"cpu_ms": 1.5} for name in ("memory", "links", "controller", "gateway")}
    assert markdown(parts).count("| cpu ms | 1.5 |") == 4

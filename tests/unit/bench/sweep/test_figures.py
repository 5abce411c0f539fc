"""The figures of a cell, worked by hand, and named as the field names them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from specpilot.bench.load.answer import Answer, Run
from specpilot.bench.sweep.exposition import acceptance_length, read
from specpilot.bench.sweep.figures import Use, figures, is_good, percentile, tpot_s
from specpilot.bench.sweep.spec_decode import SpecDecode

METRICS = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 10.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.7e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 30.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 15.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="1"} 7.0
"""

FAST = Answer(0.0, 0.1, [0.1, 0.2], 0.4, 10, 4, "abcd")
SLOW = Answer(0.0, 0.3, [0.5], 0.8, 20, 6, "efghij")
LOST = Answer(0.0, error="status 500")


def found(
    slo_ms: dict[str, float] | None = None, spec: SpecDecode | None = None, use: Use | None = None
) -> dict[str, object]:
    return figures(Run([FAST, SLOW, LOST], 2.0), slo_ms=slo_ms or {}, spec_decode=spec, use=use, price_per_hour=3.6)


def test_a_cell_adds_up() -> None:
    cell = found()
    assert (cell["completed"], cell["failed"]) == (2, 1)
    assert (cell["total_input_tokens"], cell["total_output_tokens"]) == (30, 10)
    assert cell["output_throughput"] == pytest.approx(5.0)
    assert cell["total_token_throughput"] == pytest.approx(20.0)
    assert cell["request_throughput"] == pytest.approx(1.0)
    assert cell["mean_ttft_ms"] == pytest.approx(200.0)
    assert cell["p50_itl_ms"] == pytest.approx(200.0)
    assert cell["median_tpot_ms"] == pytest.approx(100.0)  # 0.3 / 3 and 0.5 / 5
    assert cell["output_throughput_per_request"] == pytest.approx((4 / 0.4 + 6 / 0.8) / 2)
    assert cell["output_tokens_per_dollar"] == pytest.approx(5000.0)
    assert cell["request_goodput"] is None


def test_goodput_counts_whole_answers_within_every_bound() -> None:
    assert found({"ttft": 150.0})["request_goodput"] == pytest.approx(0.5)
    assert found({"ttft": 500.0, "e2el": 500.0})["request_goodput"] == pytest.approx(0.5)
    assert found({"ttft": 500.0})["request_goodput"] == pytest.approx(1.0)
    assert not is_good(LOST, {"ttft": 1e9})


def test_a_reply_of_one_token_has_no_time_per_token_and_is_good_all_the_same() -> None:
    single = Answer(0.0, 0.1, [], 0.1, 3, 1, "a")
    assert tpot_s(single) is None
    assert is_good(single, {"tpot": 1.0})


def test_without_an_answer_times_are_unknown_and_not_zero() -> None:
    cell = figures(Run([LOST], 1.0), slo_ms={}, spec_decode=None, use=None, price_per_hour=None)
    assert cell["output_throughput"] == 0.0
    assert cell["p99_ttft_ms"] is None
    assert cell["mean_itl_ms"] is None
    assert "spec_decode_acceptance_length" not in cell


def test_percentiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    values = sorted([0.3, 4.0, 1.5, 9.0, 2.25, 7.0])
    for percent in (0, 50, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)))


def test_speculation_is_read_from_vllms_counters() -> None:
    after = read(METRICS)
    assert after is not None
    cell = found(spec=after.since(SpecDecode(5.0, 15.0, 5.0, {0: 4.0, 1: 1.0})))
    assert cell["spec_decode_acceptance_length"] == pytest.approx(3.0)  # 1 + 10 / 5
    assert cell["spec_decode_acceptance_rate"] == pytest.approx(100 * 10 / 15)
    assert cell["spec_decode_per_position_acceptance_rates"] == [pytest.approx(0.8), pytest.approx(1.2)]


SGLANG = """
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
# HELP sglang:spec_accept_length The average acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.5
sglang:spec_accept_length{dp_rank="1",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 3.5
sglang:spec_accept_length{dp_rank="2",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.0
# HELP sglang:spec_accept_rate The average acceptance rate of speculative decoding.
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.6
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{engine_type="unified",model_name="m"} 7.557572e+06
"""


def test_sglang_shows_a_length_by_rank_and_nothing_that_is_counted() -> None:
    assert read(SGLANG) is None
    assert acceptance_length(SGLANG) == pytest.approx(3.0)  # a rank that drafts nothing is not in the mean
    assert acceptance_length(METRICS) is None
    assert acceptance_length("# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length 0.0\n") is None


def test_where_nothing_was_drafted_acceptance_is_unknown() -> None:
    assert SpecDecode(0.0, 0.0, 0.0).figures() == {}
    assert read("process_cpu_seconds_total 3\n") is None


def test_what_the_processes_took_is_unknown_where_nobody_could_see_it() -> None:
    assert "cpu_cores" not in found()
    cell = found(use=Use(1.5, 3 << 20))
    assert (cell["cpu_cores"], cell["memory_mib"], cell["gpu_memory_mib"]) == (1.5, 3.0, None)


def test_what_no_run_of_vllms_own_benchmark_client_shows_as_a_number_is_named_as_there() -> None:
    vllm = find_spec("vllm")
    assert vllm is not None
    assert vllm.origin is not None
    source = (Path(vllm.origin).parent / "benchmarks" / "serve.py").read_text()
    names = {"request_goodput", "spec_decode_per_position_acceptance_rates"}
    assert names <= found().keys() | SpecDecode(1.0, 3.0, 2.0, {0: 1.0}).figures().keys()
    assert all(f'"{name}"' in source for name in names)

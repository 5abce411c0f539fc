"""The sum of the engines' pages of metrics."""

import subprocess
import sys

import pytest

from specpilot.bench.load.system import reading, wait_for


def page(k: float, running: int, drafts: dict[tuple[int, int], int]) -> str:
    rows = [
        "# TYPE vllm:generation_tokens counter",
        'vllm:generation_tokens_total{model_name="m"} 70',
        "# TYPE specpilot_engine_active_k gauge",
        f'specpilot_engine_active_k{{model_name="m",traffic_class="default"}} {k}',
        "# TYPE specpilot_engine_running_decodes gauge",
        f'specpilot_engine_running_decodes{{model_name="m",traffic_class="default"}} {running}',
        "# TYPE specpilot_engine_drafts counter",
    ]
    rows += [
        f'specpilot_engine_drafts_total{{model_name="m",traffic_class="default",band="{band}",k="{drafted}"}} {count}'
        for (band, drafted), count in drafts.items()
    ]
    rows.append("# TYPE specpilot_engine_decode_tokens counter")
    rows += [
        f'specpilot_engine_decode_tokens_total{{model_name="m",traffic_class="default",band="{band}"}} 10'
        for band in (2, 6)
    ]
    return "\n".join(rows) + "\n"


def test_k_is_the_mean_over_bands_and_engines_and_no_whole_number() -> None:
    found = reading([page(3.5, 6, {(2, 1): 20, (6, 7): 10}), page(0.5, 2, {(6, 7): 10})], 5.0)
    assert (found.at, found.tokens) == (5.0, 140)
    assert found.active_k == {"default": pytest.approx(2.75)}
    assert dict(found.drafts) == {"default": 40}
    assert dict(found.verified_tokens) == {"default": 160}
    assert dict(found.delivered_tokens) == {"default": 40}


def test_of_a_class_that_does_not_run_no_k_is_told() -> None:
    assert reading([page(4.0, 0, {(2, 1): 1})], 0.0).active_k == {}


def test_a_program_that_has_ended_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(SystemExit):
        wait_for("bench", "http://127.0.0.1:1/health", 3600.0, process)
    assert "has ended with status 3" in capsys.readouterr().err

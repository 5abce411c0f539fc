"""The law's extra work is measured on vLLM's own schedulers, without a model."""

import json

import pytest

from specpilot.bench.adapter.law_steps import RUNNING, measure
from specpilot.demo_model import DEMO_HEAD, DEMO_TARGET
from specpilot.engine_adapter.head_config import HeadConfig, speculative_config


def test_it_measures_both_schedulers_at_each_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot.bench.adapter.law_steps.WARM_UP_STEPS", 110)
    measure(DEMO_TARGET, speculative_config(str(DEMO_HEAD), HeadConfig(True, 7), None), steps=60)
    *lines, figures = capsys.readouterr().out.splitlines()
    assert sum("running, " in line for line in lines) == 4
    assert all("in 0% of the steps" not in line for line in lines if "running, " in line), "the law chose nothing"
    found = json.loads(figures)
    assert found.keys() == {
        f"{name}_{kind}_{running}"
        for name in ("law_us", "law_p99_us")
        for kind in ("synchronous", "asynchronous")
        for running in RUNNING
    }
    assert all(value > 0 for value in found.values())

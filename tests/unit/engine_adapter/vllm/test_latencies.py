"""Requests of vLLM's own scheduler have latencies when they end, also by an abort."""

import time
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from tests.support.adapter_scheduler import add, scheduler, step

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own


def measures(engine: Any) -> list[str]:
    return [item.measure for item in engine.latencies.take()]


def test_a_request_that_ends_or_is_aborted_has_its_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, began_at = scheduler(monkeypatch), time.time()
    add(engine, "short", [1, 2, 3], max_tokens=2)
    add(engine, "long", [1, 2, 3], max_tokens=50)
    step(engine)
    latencies = engine.latencies.take()
    assert [item.measure for item in latencies] == ["ttft", "ttft"]
    assert all(0 < item.seconds <= time.time() - began_at for item in latencies)
    while "short" in engine.requests:
        step(engine)
    assert measures(engine) == ["tpot"]
    engine.finish_requests("long", RequestStatus.FINISHED_ABORTED)
    assert measures(engine) == ["tpot"]

"""What the agent passes on between the engine's parts."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent.agent import Agent
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.law.forecast import Outlook
from specpilot.engine_adapter.law.running_limit import LEAST, RunningLimit
from specpilot.engine_adapter.plan.latencies import Latency
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.schedule import ClassGuidance, Guidance

SLO = Slo(tpot_ms={Statistic.P95: 20.0})
CLASSES = {"default": ClassGuidance(), "chat": ClassGuidance(tpot_bound_ms=18.0, slo=SLO)}
SLOW = [Latency("chat", "tpot", 0.030)] * LEAST


@pytest.mark.parametrize(
    ("guidance", "out_of_reach", "is_chosen", "expected"),
    [
        (Guidance(classes=CLASSES, limit_running=True), ["chat"], True, 34),
        (Guidance(classes=CLASSES, limit_running=True), [], True, None),  # K can keep the bound
        (Guidance(classes=CLASSES, limit_running=True), ["chat"], False, None),  # predicted of an earlier batch
        (Guidance(classes=CLASSES), ["chat"], True, None),
        (None, ["chat"], True, None),
    ],
)
def test_the_requests_that_run_are_limited_where_the_policy_allows_it_and_k_cannot_help(
    guidance: Guidance | None,
    out_of_reach: list[str],
    is_chosen: bool,
    expected: int | None,
) -> None:
    scheduler: Any = SimpleNamespace(law=SimpleNamespace(outlook=Outlook(out_of_reach=out_of_reach)))
    exporter, limit, unused = MetricsExporter("m"), RunningLimit(64), SimpleNamespace()
    agent = Agent(scheduler, exporter, None, None, unused, unused, lambda: None, limit)  # type: ignore[arg-type]
    agent._limit_running(guidance, SLOW, {"default": 0, "chat": 40}, 0.0, is_chosen=is_chosen)
    assert limit.limit == expected
    assert (f'running_limit{{model_name="m",engine="0"}} {expected}' in exporter.text()) is (expected is not None)

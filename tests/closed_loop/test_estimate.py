"""The controller's estimate of the engines' own choice, beside what the engines really run."""

import numpy as np
import pytest

from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.schedule import Objective
from tests.simulation.engine import MODEL
from tests.simulation.loop import simulate
from tests.simulation.step_times import demo_pair_step_s, gpu_step_s
from tests.simulation.traffic import Phase, Source

SETTLED = slice(10, 30)


def chooses(**changes: object) -> Policy:
    return Policy(MODEL, control_group_ratio=0.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("step_s", [demo_pair_step_s, gpu_step_s], ids=["cpu", "gpu"])
@pytest.mark.parametrize("sources", [[("json", 8)], [("json", 6), ("code_hot", 10)], [("chat", 12)]])
def test_its_throughput_is_what_is_measured(sources: list[tuple[str, int]], step_s: object) -> None:
    phase = Phase(30, [Source(kind, running) for kind, running in sources])
    run = simulate([phase], policy=chooses(), step_s=step_s, seed=1)  # type: ignore[arg-type]
    found = [second.result.evidence["throughput"] for second in run.seconds[SETTLED]]
    ratios = [item["predicted_in_force"] / item["measured"] for item in found]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.08)
    assert all(item["predicted_best"] >= 0.99 * item["predicted_static"] for item in found)


def test_its_k_is_what_the_engine_runs() -> None:
    phase = Phase(30, [Source("json", 6, "json"), Source("code_hot", 10, "code")])
    run = simulate([phase], policy=chooses(classes={"json": ClassPolicy(), "code": ClassPolicy()}), seed=1)
    newest = run.seconds[-1].result
    k = newest.k(newest.proposed)
    assert k["default:7"] >= 6
    assert k["default:0"] <= 1
    decodes, total = run.fleet[0].by_source.T
    shares = {int(band): found["share"] for band, found in newest.evidence["bands"].items() if found.get("share")}
    estimated = sum(share * k[f"default:{band}"] for band, share in shares.items()) / sum(shares.values())
    assert estimated == pytest.approx(total.sum() / decodes.sum(), abs=1.0)


def test_bounds_pins_and_slos_are_in_it() -> None:
    policy = chooses(
        objective=Objective.LATENCY,
        classes={"batch": ClassPolicy(pin=6), "chat": ClassPolicy(k_max=2, itl_slo_ms=900.0)},
    )
    run = simulate([Phase(15, [Source("json", 4, "chat"), Source("json", 4, "batch")])], policy=policy)
    newest = run.seconds[-1].result
    rows = newest.proposed
    assert {item.k for item in rows["batch"]} == {6}
    assert max(item.k for name, ranges in rows.items() if name.startswith("chat") for item in ranges) == 2
    assert newest.evidence["throughput"]["predicted_in_force"] > 0

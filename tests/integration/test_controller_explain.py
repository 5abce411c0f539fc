"""Decisions of a controller: paged back, and explained for any moment, over HTTP and on the command line."""

import json
import time

from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_program import Controller, running_controller
from tests.support.patience import PATIENCE_S
from tests.support.stack import until


def decision(at: float, reason: str, measured: float) -> Decision:
    schedule = Schedule("demo", "cpu", 5, at, Guidance())
    classes = {"default": {"share": 1.0, "k": 3.0, "measured_length": 2.5}}
    bands = {"6": {"acceptance": [0.9, 0.88], "survival": [0.9, 0.792], "trials": [900, 700], "share": 1.0, "k": 3.0}}
    gain = {"low": 0.02, "mean": 0.06, "high": 0.1}
    control_group = {
        "windows": 12,
        "has_lost": False,
        "measure": "throughput",
        "gain_ratio": gain,
        "throughput_gain_ratio": gain,
        "itl_gain_ratio": {"low": 0.01, "mean": 0.05, "high": 0.09},
    }
    evidence = {
        "decodes": 8.0,
        "throughput": measured,
        "classes": classes,
        "bands": bands,
        "control_group": control_group,
        "step_s": 0.01,
    }
    return Decision(at, "demo", "cpu", Mode.ACT, reason, True, 5, schedule, evidence, k={"default": 3.0})


def test_decisions_page_back_and_any_moment_is_explained(controller: Controller) -> None:
    store = Store(controller.redis.url, PATIENCE_S)
    for reason, measured in (
        ("stale", 1000.0),
        ("control_group", 1000.0),
        ("adaptive", 1500.0),
        ("adaptive", 1500.0),
        ("adaptive", 1500.0),
    ):
        store.append_decision(decision(time.time(), reason, measured), is_lasting=True)
        time.sleep(0.02)
    newest = controller.call("/admin/decisions?model=demo&pool=cpu&limit=2")[1]["decisions"]
    assert len(newest) == 2
    older = controller.call(f"/admin/decisions?model=demo&pool=cpu&limit=9&before={newest[-1]['at']}")[1]["decisions"]
    assert len(older) == 3
    found = controller.call("/admin/explain?model=demo&pool=cpu")[1]
    assert (found["reason"], found["k"], found["evidence"]["throughput"]) == ("adaptive", {"default": 3.0}, 1500.0)
    for moment, reason in zip(older, ("adaptive", "control_group", "stale"), strict=True):
        then = controller.call(f"/admin/explain?model=demo&pool=cpu&at={moment['at'] + 0.005}")[1]
        assert (then["at"], then["reason"]) == (moment["at"], reason)
    assert then["evidence"]["throughput"] == 1000.0
    assert controller.call("/admin/explain?model=demo&pool=cpu&at=5")[0] == 404
    told = controller.command("explain", "--model", "demo", "--pool", "cpu")
    assert told.returncode == 0, told.stderr
    for line in (
        "class default: 100% of the traffic, K 3.0, 2.50 tokens a step",
        "band 6: 100% of the decodes, K 3.0, survival 0.90 0.79",
        "control group: adaptive K gains +6.0% over the static K, between +2.0% and +10.0% (95 %, 12 windows)",
        "  gain in inter-token latency: +5.0%, between +1.0% and +9.0%",
        "no prediction: no engine of the pool can speculate",
    ):
        assert line in told.stdout
    as_json = controller.command("explain", "--model", "demo", "--pool", "cpu", "--json")
    assert (json.loads(as_json.stdout)["version"], json.loads(as_json.stdout)["engines"]["answers"]) == (5, [])
    assert controller.command("explain", "--model", "nobody").returncode == 1


def test_explain_finds_the_only_model_and_pool() -> None:
    with running_controller() as controller:
        store = Store(controller.redis.url, PATIENCE_S)

        def has_decided(pool: str) -> bool:
            return bool(store.decisions("demo", pool, 1))

        def register(pool: str) -> None:
            url = f"http://127.0.0.1:1/{pool}"
            record = EngineRecord(pool, url, "demo", pool, 7, 7, 32, "eagle3", "0.32.0", "0.1.0", 1.0, time.time())
            store.heartbeat(record, 60.0)
            until(lambda: has_decided(pool))

        none = controller.command("explain")
        problem = "no engine of such a model and pool runs; name both --model and --pool to look back"
        assert (none.returncode, none.stderr) == (1, f"specpilot explain: {problem}\n")
        register("h200")
        assert controller.command("explain").stdout.startswith("demo in pool h200")
        register("l40s")
        assert "--pool: name one of: h200, l40s" in controller.command("explain").stderr
        assert controller.command("explain", "--pool", "l40s").stdout.startswith("demo in pool l40s")
        for kind in ("ask", "explain", "decisions"):
            for model, pool, param in (("dem", "l40s", "model"), ("demo", "b200", "pool")):
                status, reply, _ = controller.call(f"/admin/{kind}?model={model}&pool={pool}")
                assert (status, reply["error"]["param"]) == (404, param), reply
                assert "demo" in reply["error"]["message"]
        assert controller.call("/admin/ask?model=demo&pool=l40s")[0] == 200

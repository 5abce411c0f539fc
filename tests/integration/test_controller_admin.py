"""The admin API of a real controller process on a real Redis, over HTTP and through the command line."""

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
from tests.support.controller_program import Controller, running_controller
from tests.support.stack import until


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with running_controller() as found:
        yield found


def test_health_ready_metrics_console_and_description_need_no_token(controller: Controller) -> None:
    for path in ("/health", "/ready", "/metrics", "/", "/openapi.json"):
        assert controller.call(path, token=None)[0] == 200, path
    assert "specpilot_controller_lease_held 1.0" in controller.call("/metrics")[1]


def test_no_page_loads_scripts_from_elsewhere(controller: Controller) -> None:
    """One on this origin would be an admin on a machine that is trusted."""
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        assert controller.call(path, token=None)[0] == 404, path


@pytest.mark.parametrize("token", [None, "wrong", ""])
def test_admin_needs_the_token(controller: Controller, token: str | None) -> None:
    status, body, headers = controller.call("/admin/policies", token=token)
    assert status == 401
    assert body["error"]["code"] == "invalid_admin_token"
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert headers["www-authenticate"] == "Bearer"


def test_a_policy_lives_by_its_etag(controller: Controller) -> None:
    path = "/admin/policies/org/model-1"
    assert controller.call(path)[0] == 404
    status, body, headers = controller.call(path, "PUT", {"classes": {"code": {"weight": 2}}}, If_None_Match="*")
    assert (status, body["version"], headers["etag"]) == (201, 1, '"1"')
    assert controller.call(path, "PUT", {}, If_None_Match="*")[0] == 412
    status, body, _ = controller.call(path, "PUT", {"k_min": 1})
    assert status == 428
    assert 'If-Match (now "1")' in body["error"]["message"]
    assert controller.call(path, "PUT", {"k_min": 1}, If_Match='"7"')[0] == 412
    assert controller.call(path, "PUT", {"k_min": 1}, If_Match="nonsense")[0] == 412
    status, body, _ = controller.call(path, "PUT", {"k_min": 1}, If_Match='"1"')
    assert (status, body["version"], body["policy"]["k_min"]) == (200, 2, 1)
    status, body, headers = controller.call(path, "PATCH", {"mode": "advise", "k_min": None}, If_Match=headers["etag"])
    assert status == 412
    status, body, headers = controller.call(path, "PATCH", {"mode": "advise", "k_min": None})
    assert (status, body["policy"]["mode"], body["policy"]["k_min"]) == (200, "advise", 0)
    assert any(item["policy"]["model"] == "org/model-1" for item in controller.call("/admin/policies")[1]["policies"])
    assert controller.call(path, "DELETE", If_Match='"1"')[0] == 412
    assert controller.call(path, "DELETE", If_Match=headers["etag"])[0] == 204
    assert controller.call(path, "DELETE")[0] == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["Invalid JSON"]),
        (b"[1]", ["an object"]),
        ({"k_min": 9, "k_max": 1, "probe_ratio": 2}, ["k_min 9 is above k_max 1", "probe_ratio"]),
        ({"k_min": "many", "mode": "fast", "surprise": 1}, ["k_min", "mode", "surprise"]),
        ({"classes": {"code": {"weight": 0, "pin": -1}}}, ["classes.code", "weight", "pin"]),
        ({"model": "another"}, ["model", "the path names"]),
    ],
    ids=["no JSON", "no object", "range", "types", "class", "model"],
)
def test_every_fault_of_a_policy_is_told_at_once(controller: Controller, body: Any, words: list[str]) -> None:
    status, answer, _ = controller.call("/admin/policies/m", "PUT", body)
    assert status == 422
    assert answer["error"]["code"] == "invalid_document"
    for word in words:
        assert word in answer["error"]["message"]
    assert controller.call("/admin/policies/m")[0] == 404


def test_who_sends_20_megabytes_reads_the_refusal(controller: Controller) -> None:
    status, answer, _ = controller.call("/admin/policies/m", "PUT", b" " * (20 << 20))
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


def test_a_client_key_is_shown_once_and_stored_as_its_hash(controller: Controller) -> None:
    status, made, _ = controller.call("/admin/keys", "POST", {"traffic_class": "code", "allowed_classes": ["code"]})
    assert status == 201
    stored = RedisStore(controller.redis.url).api_keys()
    assert [item.sha256 for item in stored] == [hashlib.sha256(made["key"].encode()).hexdigest()]
    listed = controller.call("/admin/keys")[1]["keys"]
    numbers = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "k_max")
    limits = dict.fromkeys((*numbers, "allowed_models", "expires_at", "previous_expires_at"))
    assert listed == [{"key_id": made["key_id"], "traffic_class": "code", "allowed_classes": ["code"], **limits}]
    assert controller.call("/admin/keys", "POST", {"traffic_class": "No!", "colour": 1})[0] == 422
    assert controller.call(f"/admin/keys/{made['key_id']}", "DELETE")[0] == 204
    assert controller.call(f"/admin/keys/{made['key_id']}", "DELETE")[0] == 404


def test_the_limits_of_a_client_key_are_set_changed_and_checked(controller: Controller) -> None:
    status, made, _ = controller.call("/admin/keys", "POST", {"requests_per_minute": 60, "tokens_per_minute": 9000})
    assert (status, made["requests_per_minute"], made["tokens_per_minute"]) == (201, 60, 9000)
    path = f"/admin/keys/{made['key_id']}"
    status, changed, _ = controller.call(path, "PATCH", {"requests_per_minute": 120, "tokens_per_minute": None})
    assert (status, changed["requests_per_minute"], changed["tokens_per_minute"]) == (200, 120, None)
    [stored] = RedisStore(controller.redis.url).api_keys()
    assert stored.sha256 == hashlib.sha256(made["key"].encode()).hexdigest()
    assert (stored.requests_per_minute, stored.tokens_per_minute) == (120, None)
    status, refused, _ = controller.call(path, "PATCH", {"requests_per_minute": 0, "tokens_per_minute": "many"})
    assert status == 422
    assert [fault["field"] for fault in refused["error"]["faults"]] == ["requests_per_minute", "tokens_per_minute"]
    assert controller.call("/admin/keys/none", "PATCH", {"requests_per_minute": 5})[0] == 404


def test_the_models_places_and_ceiling_of_a_client_key_are_set_changed_and_checked(controller: Controller) -> None:
    may = {"allowed_models": ["big"], "max_concurrent_requests": 4, "k_max": 0}
    status, made, _ = controller.call("/admin/keys", "POST", may)
    assert (status, {name: made[name] for name in may}) == (201, may)
    path = f"/admin/keys/{made['key_id']}"
    changed = controller.call(path, "PATCH", {"k_max": 3, "allowed_models": None})[1]
    assert {name: changed[name] for name in may} == {"allowed_models": None, "max_concurrent_requests": 4, "k_max": 3}
    wrong = {"allowed_models": "big", "max_concurrent_requests": 0, "k_max": 65}
    status, refused, _ = controller.call(path, "PATCH", wrong)
    assert status == 422
    assert {fault["field"] for fault in refused["error"]["faults"]} == set(wrong)
    status, refused, _ = controller.call(path, "PATCH", {"allowed_models": ["a\nb"], "k_max": True})
    assert [fault["field"] for fault in refused["error"]["faults"]] == ["allowed_models", "k_max"]
    assert controller.call(path, "DELETE")[0] == 204


def test_model_routes_are_one_document_that_nobody_overwrites_unseen(controller: Controller) -> None:
    status, body, headers = controller.call("/admin/model-routes")
    assert (status, body, headers["etag"]) == (200, {"version": 0, "updated_at": 0.0, "routes": {}}, '"0"')
    chat = {"split": [{"model": "big", "weight": 9.0}, {"model": "new", "weight": 1.0}], "fallback": ["small"]}
    tried = controller.call("/admin/model-routes?validate_only=true", "PUT", {"routes": {"chat": chat}})[1]
    assert (tried["dry_run"], tried["subject"], tried["version"]) == (True, "model-routes", 1)
    assert [item[0] for item in tried["changes"]] == ["routes.chat"]
    status, body, headers = controller.call("/admin/model-routes", "PUT", {"routes": {"chat": chat}})
    assert (status, body["version"], body["routes"], headers["etag"]) == (201, 1, {"chat": chat}, '"1"')
    assert controller.call("/admin/model-routes", "PUT", {})[0] == 428
    assert controller.call("/admin/model-routes", "PUT", {}, If_Match='"7"')[0] == 412
    more = {"routes": {"fast": {"split": [{"model": "small"}]}}}
    status, body, _ = controller.call("/admin/model-routes", "PATCH", more)
    assert (status, body["version"], sorted(body["routes"])) == (200, 2, ["chat", "fast"])
    assert body["routes"]["fast"] == {"split": [{"model": "small", "weight": 1.0}], "fallback": []}
    assert controller.call("/admin/model-routes", "PATCH", more, If_Match='"1"')[0] == 412
    status, refused, _ = controller.call("/admin/model-routes", "PATCH", {"routes": {"x": {}, "y": {"split": [{}]}}})
    assert status == 422
    assert [fault["field"] for fault in refused["error"]["faults"]] == ["routes.x", "routes.y.split.0.model"]
    assert "names no model; give split, fallback or both" in refused["error"]["message"]
    status, body, _ = controller.call("/admin/model-routes", "PUT", {"routes": {}}, If_Match='"2"')
    assert (status, body["version"], body["routes"]) == (200, 3, {})
    entries = [item for item in controller.call("/admin/audit")[1]["entries"] if item["subject"] == "model-routes"]
    assert [item["action"] for item in entries if item["result"] == "done"] == [
        *("put_model_routes", "patch_model_routes", "put_model_routes")
    ]
    assert [item[:2] for entry in entries for item in entry["changes"]].count(["routes.chat", None]) == 1


def test_unknown_paths_methods_and_queries_are_told_in_the_envelope(controller: Controller) -> None:
    for path, method, status in (
        ("/admin/nothing", "GET", 404),
        ("/admin/engines", "POST", 405),
        ("/admin/decisions", "GET", 422),
        ("/admin/decisions?model=m&limit=0", "GET", 422),
        ("/admin/explain?model=m", "GET", 404),
    ):
        found, body, _ = controller.call(path, method)
        assert found == status, path
        assert set(body["error"]) >= {"message", "type", "param", "code"}


def decision(at: float, reason: str, measured: float) -> Decision:
    schedule = Schedule("demo", "cpu", 5, at, 15.0, 0.02, {"default": (KRange(1, 64, 3),)})
    throughput = {
        "measured": measured,
        "predicted_in_force": measured,
        "predicted_best": measured,
        "predicted_static": 900.0,
    }
    classes = {"default": {"share": 1.0, "measured_length": 2.5}}
    bands = {"6": {"acceptance": [0.9, 0.88], "survival": [0.9, 0.792], "trials": [900, 700], "share": 1.0}}
    gain = {"low": 0.02, "mean": 0.06, "high": 0.1}
    hold_out = {
        "windows": 12,
        "is_stepped_back": False,
        "measure": "throughput",
        "gain_ratio": gain,
        "throughput_gain_ratio": gain,
        "itl_gain_ratio": {"low": 0.01, "mean": 0.05, "high": 0.09},
    }
    evidence = {
        "decodes": 8.0,
        "throughput": throughput,
        "classes": classes,
        "bands": bands,
        "hold_out": hold_out,
        "step_s": {"measured": 0.01, "predicted": 0.011},
    }
    return Decision(at, "demo", "cpu", Mode.ACT, reason, True, 5, schedule, 0.1, evidence)


def test_decisions_page_back_and_any_moment_is_explained(controller: Controller) -> None:
    store = RedisStore(controller.redis.url)
    for reason, measured in (
        ("unpriced", 1000.0),
        ("hold_out", 1000.0),
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
    assert (found["reason"], found["k"], found["throughput"]["measured"]) == ("adaptive", {"default": 3}, 1500.0)
    for moment, reason in zip(older, ("adaptive", "hold_out", "unpriced"), strict=True):
        then = controller.call(f"/admin/explain?model=demo&pool=cpu&at={moment['at'] + 0.005}")[1]
        assert (then["at"], then["reason"]) == (moment["at"], reason)
    assert then["throughput"]["measured"] == 1000.0
    assert controller.call("/admin/explain?model=demo&pool=cpu&at=5")[0] == 404
    told = controller.command("explain", "--model", "demo", "--pool", "cpu")
    assert told.returncode == 0, told.stderr
    for line in (
        "class default: 100% of the traffic, 2.50 tokens a step measured",
        "K of default: 3\n",
        "band 6: 100% of the running decodes, S = 0.90 (0.88..0.92) 0.79 (0.77..0.81)",
        "control group: adaptive K gains +6.0% over the static K, between +2.0% and +10.0% (95 %, 12 windows)",
        "  gain in inter-token latency: +5.0%, between +1.0% and +9.0%",
        "the engines' choice would gain +10.0% now (predicted)",
        "the K in force gains +66.7% over static K (predicted)",
    ):
        assert line in told.stdout
    as_json = controller.command("explain", "--model", "demo", "--pool", "cpu", "--json")
    assert json.loads(as_json.stdout)["version"] == 5
    assert controller.command("explain", "--model", "nobody").returncode == 1


def test_explain_tells_k_in_force_from_k_advised(controller: Controller) -> None:
    store = RedisStore(controller.redis.url)
    advised = decision(time.time(), "adaptive", 1000.0)
    store.append_decision(replace(advised, pool="quiet", mode=Mode.ADVISE, k={"default": 7}), is_lasting=False)
    told = controller.command("explain", "--model", "demo", "--pool", "quiet").stdout
    assert "K of default: 7 (advised: 3)\n" in told


def test_explain_finds_the_only_model_and_pool() -> None:
    with running_controller() as controller:
        store = RedisStore(controller.redis.url)

        def has_decided(pool: str) -> bool:
            return bool(store.decisions("demo", pool, 1))

        def register(pool: str) -> None:
            url = f"http://127.0.0.1:1/{pool}"
            record = EngineRecord(pool, url, "demo", pool, 7, 7, 32, "eagle3", "0.32.0", "0.1.0", 1.0, time.time())
            store.heartbeat(record, 60.0)
            until(lambda: has_decided(pool), 10.0)

        none = controller.command("explain")
        problem = "no engine of such a model and pool runs; name both --model and --pool to look back"
        assert (none.returncode, none.stderr) == (1, f"specpilot explain: {problem}\n")
        register("h200")
        assert controller.command("explain").stdout.startswith("demo in pool h200")
        register("l40s")
        assert "--pool: name one of: h200, l40s" in controller.command("explain").stderr
        assert controller.command("explain", "--pool", "l40s").stdout.startswith("demo in pool l40s")


def test_policies_from_the_command_line(controller: Controller, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"model": "cli", "static_k": 3}')
    assert controller.command("policy", "put", str(file)).returncode == 0
    got = controller.command("policy", "get", "cli")
    document = json.loads(got.stdout)
    document["policy"]["static_k"] = 4
    assert controller.command("policy", "put", "-", text=json.dumps(document)).returncode == 0
    late = controller.command("policy", "put", str(file), "--version", "1")
    assert late.returncode == 1
    assert "version 2" in late.stderr
    assert "cli  version 2" in controller.command("policy", "list").stdout
    assert controller.command("policy", "delete", "cli").returncode == 0
    missing = controller.command("policy", "get", "cli")
    assert missing.returncode == 1
    assert "has no policy" in missing.stderr
    assert controller.command("policy", "put", str(tmp_path / "nothing")).returncode == 2


def test_a_canary_is_started_looked_at_promoted_and_aborted(controller: Controller) -> None:
    path = "/admin/canaries/org/tried"
    assert controller.call("/admin/policies/org/tried", "PUT", {"static_k": 3})[0] == 201
    assert controller.call(path)[1]["error"]["code"] == "canary_not_found"
    status, body, _ = controller.call(path, "PUT", {"policy": {"static_k": 5}, "share_ratio": 0.25})
    assert (status, body["base_version"], body["outcome"]) == (201, 1, None)
    status, body, _ = controller.call(path, "PUT", {"policy": {}})
    assert (status, body["error"]["code"]) == (409, "canary_running")
    assert controller.call(path)[1]["evidence"]["blocks_at_most"] == 45
    assert [item["canary"]["policy"]["model"] for item in controller.call("/admin/canaries")[1]["canaries"]] == [
        "org/tried"
    ]
    status, body, _ = controller.call(path, "DELETE")
    assert (status, body["outcome"]) == (200, "aborted")
    assert controller.call(path, "DELETE")[1]["error"]["code"] == "canary_not_running"
    assert controller.call("/admin/policies/org/tried")[1]["version"] == 1
    assert controller.call(path, "PUT", {"policy": {"static_k": 5}})[0] == 201
    status, body, _ = controller.call("/admin/canary-promotions/org/tried", "POST")
    assert (status, body["outcome"]) == (200, "promoted")
    stored = controller.call("/admin/policies/org/tried")[1]
    assert (stored["version"], stored["policy"]["static_k"]) == (2, 5)


def test_a_canary_that_would_lose_the_models_classes_is_refused(controller: Controller) -> None:
    assert controller.call("/admin/policies/classy", "PUT", {"classes": {"code": {"weight": 2}}})[0] == 201
    status, body, _ = controller.call("/admin/canaries/classy", "PUT", {"policy": {"k_max": 5}})
    assert (status, body["error"]["param"]) == (422, "policy.classes")
    assert "names none, but the present policy code" in body["error"]["message"]
    policy = {"k_max": 5, "classes": {"code": {}, "default": {"weight": 3}}}
    assert controller.call("/admin/canaries/classy", "PUT", {"policy": policy})[0] == 201
    assert controller.call("/admin/canaries/classy", "DELETE")[0] == 200


def test_the_leader_ends_a_canary_whose_present_policy_was_replaced(controller: Controller) -> None:
    assert controller.call("/admin/canaries/replaced", "PUT", {"policy": {"static_k": 5}})[0] == 201
    assert controller.call("/admin/policies/replaced", "PUT", {"static_k": 1})[0] == 201
    deadline = time.monotonic() + 8
    found = None
    while found is None and time.monotonic() < deadline:
        found = controller.call("/admin/canaries/replaced")[1]["outcome"]
        time.sleep(0.05)
    assert found == "policy_changed"
    assert controller.call("/admin/policies/replaced")[1]["version"] == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["policy"]),
        ({"policy": {"model": "another"}}, ["policy.model", "the path names"]),
        ({"policy": {"k_min": 9, "k_max": 1}, "share_ratio": "half", "surprise": 1}, ["k_min 9", "share", "surprise"]),
        ({"policy": {}, "share_ratio": 0.9, "window_s": 1}, ["share_ratio is 0.9", "window_s is 1"]),
        ({"policy": {"match": [{"traffic_class": "default", "path": "/x"}]}}, ["policy.match", "gateway"]),
        (
            {"policy": {"classes": {"default": {}, "new": {}}}},
            ["policy.classes", "names new, but the present policy none"],
        ),
    ],
    ids=["nothing", "model", "policy", "range", "match", "classes"],
)
def test_every_fault_of_a_canary_is_told_at_once(controller: Controller, body: Any, words: list[str]) -> None:
    status, answer, _ = controller.call("/admin/canaries/faulty", "PUT", body)
    assert status == 422
    for word in words:
        assert word in answer["error"]["message"]
    assert controller.call("/admin/canaries/faulty")[0] == 404


def test_a_canary_that_another_one_has_followed_is_not_ended_in_its_place(controller: Controller) -> None:
    path, promotion = "/admin/canaries/followed", "/admin/canary-promotions/followed"
    first = controller.call(path, "PUT", {"policy": {"static_k": 5}})[1]["experiment_id"]
    assert controller.call(path, "DELETE", If_Match=f'"{first}"')[0] == 200
    second = controller.call(path, "PUT", {"policy": {"static_k": 2}})[1]["experiment_id"]
    for where, method in ((path, "DELETE"), (promotion, "POST")):
        for query in ("", "?validate_only=true"):
            status, body, _ = controller.call(where + query, method, If_Match=f'"{first}"')
            assert (status, body["error"]["code"], body["error"]["param"]) == (412, "version_conflict", "If-Match")
            assert f"the canary {second} of 'followed' runs now" in body["error"]["message"]
    late = controller.command("policy", "canary", "promote", "followed", "--experiment", first)
    assert (late.returncode, second in late.stderr) == (1, True)
    done = controller.command("policy", "canary", "promote", "followed", "--experiment", second)
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, "promoted")


def test_canaries_from_the_command_line(controller: Controller, tmp_path: Path) -> None:
    file = tmp_path / "canary.json"
    file.write_text('{"policy": {"model": "cli-tried", "static_k": 3}}')
    started = controller.command("policy", "canary", "start", str(file))
    assert started.returncode == 0, started.stderr
    assert json.loads(controller.command("policy", "canary", "show", "cli-tried").stdout)["outcome"] is None
    again = controller.command("policy", "canary", "start", str(file))
    assert again.returncode == 1
    assert "abort or promote it first" in again.stderr
    assert controller.command("policy", "canary", "abort", "cli-tried").returncode == 0
    assert controller.command("policy", "canary", "promote", "cli-tried").returncode == 1
    assert controller.command("policy", "canary").returncode == 2
    assert controller.command("policy", "canary", "start").returncode == 2
    file.write_text('{"policy": {}}')
    nameless = controller.command("policy", "canary", "start", str(file))
    assert nameless.returncode == 2
    assert "must name the model" in nameless.stderr


def test_engines_and_schedules_are_listed(controller: Controller) -> None:
    store = RedisStore(controller.redis.url)
    store.heartbeat(EngineRecord("e", "http://127.0.0.1:9", "listed", "cpu", 7, 3, 8, "eagle3", "0", "0", 1, 1), 30.0)
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        found = [item for item in controller.call("/admin/schedules")[1]["schedules"] if item["model"] == "listed"]
        if found:
            break
        time.sleep(0.1)
    assert found[0]["classes"]["default"] == [[1, 8, 3]]
    assert [item["engine_id"] for item in controller.call("/admin/engines")[1]["engines"]] == ["e"]
    newest = controller.call("/admin/decisions?model=listed&pool=cpu&limit=1")[1]["decisions"][0]
    assert newest["reason"] == "stale"


def test_redis_gone_is_503_with_a_time_to_come_back(controller: Controller) -> None:
    controller.redis.stop()
    try:
        status, body, headers = controller.call("/admin/policies")
        assert (status, body["error"]["code"]) == (503, "store_unavailable")
        assert headers["retry-after"]
        assert controller.call("/ready")[0] == 503
        assert controller.call("/health")[0] == 200
    finally:
        controller.redis.start()
    assert controller.call("/admin/policies")[0] == 200


def test_without_a_token_only_this_machine_and_no_foreign_page_is_served() -> None:
    with running_controller(token=None) as controller:
        assert controller.call("/admin/policies", token=None)[0] == 200
        assert controller.call("/admin/policies", token=None, Host="evil.example")[0] == 403
        assert controller.call("/admin/policies", token=None, Origin="http://evil.example")[0] == 403

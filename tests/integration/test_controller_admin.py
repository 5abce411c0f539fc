"""The admin API of a controller on a real Redis: what needs a token, policies, model routes, faults, Redis away."""

from typing import Any

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store
from tests.support.controller_program import TOKEN, Controller
from tests.support.patience import PATIENCE_S
from tests.support.stack import until


def test_health_ready_metrics_console_and_description_need_no_token(controller: Controller) -> None:
    for path in ("/health", "/ready", "/metrics", "/", "/openapi.json"):
        assert controller.call(path, token=None)[0] == 200, path
    until(lambda: "specpilot_controller_lease_held 1.0" in controller.call("/metrics")[1])


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
    ("kind", "body", "words"),
    [
        ("policies", b"{", ["not JSON"]),
        ("policies", b"[1]", ["an object"]),
        ("policies", {"k_min": 9, "k_max": 1}, ["k_min 9 is above k_max 1"]),
        ("policies", {"k_min": 65, "k_max": -1, "probe_ratio": 2}, ["k_min", "k_max", "probe_ratio"]),
        ("policies", {"k_min": "many", "mode": "fast", "surprise": 1}, ["k_min", "mode", "surprise"]),
        ("policies", {"classes": {"code": {"weight": 0, "pin": -1}}}, ["classes.code", "weight", "pin"]),
        ("policies", {"model": "another"}, ["model: is 'another'", "the path names"]),
        ("policies", {"model": 5}, ["model: is '5'", "the path names"]),
        ("canaries", {}, ["policy"]),
        ("canaries", {"policy": [1]}, ["policy: must be an object"]),
        ("canaries", {"policy": {"model": "another"}}, ["policy.model: is 'another'", "the path names"]),
        (
            "canaries",
            {"policy": {"k_min": 9, "k_max": 1}, "share_ratio": "half", "surprise": 1},
            ["k_min 9", "share", "surprise"],
        ),
        (
            "canaries",
            {"policy": {}, "share_ratio": 0.9, "window_s": 1},
            ["share_ratio: must be at most 0.5", "window_s: must be at least 5"],
        ),
        ("canaries", {"policy": {"match": [{"traffic_class": "default", "path": "/x"}]}}, ["policy.match", "gateway"]),
        (
            "canaries",
            {"policy": {"classes": {"default": {}, "new": {}}}},
            ["policy.classes", "names new, but the present policy none"],
        ),
    ],
)
def test_every_fault_of_a_document_is_told_at_once(
    controller: Controller, kind: str, body: Any, words: list[str]
) -> None:
    status, answer, _ = controller.call(f"/admin/{kind}/faulty", "PUT", body)
    assert (status, answer["error"]["code"]) == (422, "invalid_document")
    for word in words:
        assert word in answer["error"]["message"]
    assert controller.call(f"/admin/{kind}/faulty")[0] == 404


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


def test_engines_and_schedules_are_listed(controller: Controller) -> None:
    store = Store(controller.redis.url, PATIENCE_S)
    store.heartbeat(EngineRecord("e", "http://127.0.0.1:9", "listed", "cpu", 7, 3, 8, "eagle3", "0", "0", 1, 1), 30.0)

    def listed() -> list[Any]:
        return [item for item in controller.call("/admin/schedules")[1]["schedules"] if item["model"] == "listed"]

    until(listed)
    found = listed()
    assert found[0]["guidance"]["classes"]["default"]["k_max"] == 64
    assert [item["engine_id"] for item in controller.call("/admin/engines")[1]["engines"]] == ["e"]
    newest = controller.call("/admin/decisions?model=listed&pool=cpu&limit=1")[1]["decisions"][0]
    assert newest["reason"] == "stale"


def test_redis_gone_is_503_with_a_time_to_come_back(controller: Controller, tokens: dict[str, str]) -> None:
    saved = Store(controller.redis.url, PATIENCE_S).admin_tokens()
    controller.redis.stop()
    try:
        for token in (TOKEN, tokens["operator"]):
            status, body, headers = controller.call("/admin/policies", token=token)
            assert (status, body["error"]["code"]) == (503, "store_unavailable")
            assert headers["retry-after"]
        assert controller.call("/ready")[0] == 503
        assert controller.call("/health")[0] == 200
    finally:
        controller.redis.start()
    store = Store(controller.redis.url, PATIENCE_S)
    assert all(store.put_admin_token(token, None) for token in saved)
    assert controller.call("/admin/policies", token=tokens["operator"])[0] == 200


def test_one_unreadable_document_leaves_the_calls_about_the_others(controller: Controller) -> None:
    stored = Store(controller.redis.url, PATIENCE_S)
    made = controller.call("/admin/keys", "POST", {})[1]["key_id"]
    for key in (redis_keys.FREEZES, redis_keys.API_KEYS, redis_keys.ADMIN_TOKENS):
        stored._redis.hset(key, "bad", "{nonsense")
    [frozen] = controller.call("/admin/freezes")[1]["freezes"]
    assert (frozen["model"], frozen["hold"], frozen["until"]) == ("bad", "current", None)
    assert controller.call("/admin/freezes/bad", "PUT", {})[1]["error"]["code"] == "frozen_by_another"
    assert controller.call("/admin/freezes/bad", "PUT", {"replace": True})[0] == 200
    stored._redis.hset(redis_keys.FREEZES, "bad", "{nonsense")
    assert controller.call("/admin/freezes/bad", "DELETE")[0] == 204
    assert controller.call("/admin/freezes")[1]["freezes"] == []
    assert "bad" not in {item["key_id"] for item in controller.call("/admin/keys")[1]["keys"]}
    assert controller.call("/admin/tokens")[0] == 200
    assert controller.call(f"/admin/keys/{made}", "DELETE")[0] == 204
    stored._redis.hset(redis_keys.CANARIES, "bad", "{nonsense")
    error = controller.call("/admin/canaries/bad")[1]["error"]
    assert error["code"] == "invalid_stored_document"
    assert (
        f"repair or delete it there: invalid Experiment in field bad of the hash {redis_keys.CANARIES}"
        in error["message"]
    )
    stored._redis.hdel(redis_keys.CANARIES, "bad")
    for path in ("/admin/keys/bad", "/admin/tokens/bad"):
        assert controller.call(path + "?validate_only=true", "DELETE")[0] == 404
        assert controller.call(path, "DELETE")[0] == 204
        assert controller.call(path, "DELETE")[0] == 404
    stored.close()

"""Client keys and tokens of operators, their roles, and admission without a token."""

import hashlib
import json
import socket
import time
from http.client import HTTPConnection
from typing import Any

import pytest

from specpilot.policy.access import sha256_of
from specpilot.policy.codec import to_plain
from specpilot.policy.store import Store
from tests.support.controller_program import TOKEN, Controller, newest, running_controller
from tests.support.patience import PATIENCE_S


def test_a_client_key_is_shown_once_and_stored_as_its_hash(controller: Controller) -> None:
    status, made, _ = controller.call("/admin/keys", "POST", {"traffic_class": "code", "allowed_classes": ["code"]})
    assert status == 201
    stored = Store(controller.redis.url, PATIENCE_S).api_keys()
    assert [item.sha256 for item in stored] == [hashlib.sha256(made["key"].encode()).hexdigest()]
    listed = controller.call("/admin/keys")[1]["keys"]
    numbers = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "k_max")
    limits = dict.fromkeys((*numbers, "allowed_models", "expires_at", "previous_expires_at"))
    assert listed == [{"key_id": made["key_id"], "traffic_class": "code", "allowed_classes": ["code"], **limits}]
    assert controller.call("/admin/keys", "POST", {"traffic_class": "No!", "colour": 1})[0] == 422
    assert controller.call(f"/admin/keys/{made['key_id']}", "DELETE")[0] == 204
    assert controller.call(f"/admin/keys/{made['key_id']}", "DELETE")[0] == 404


@pytest.mark.parametrize(
    ("made", "changes", "wrong"),
    [
        (
            {"requests_per_minute": 60, "tokens_per_minute": 9000},
            {"requests_per_minute": 120, "tokens_per_minute": None},
            {"requests_per_minute": 0, "tokens_per_minute": "many"},
        ),
        (
            {"allowed_models": ["big"], "max_concurrent_requests": 4, "k_max": 0},
            {"k_max": 3, "allowed_models": None},
            {"allowed_models": "big", "max_concurrent_requests": 0, "k_max": 65},
        ),
        ({"allowed_models": ["big"], "k_max": 64}, {}, {"allowed_models": ["a\nb"], "k_max": True}),
    ],
    ids=["rates", "rights", "names"],
)
def test_the_limits_of_a_client_key_are_set_changed_and_checked(
    controller: Controller, made: dict[str, Any], changes: dict[str, Any], wrong: dict[str, Any]
) -> None:
    status, key, _ = controller.call("/admin/keys", "POST", made)
    assert (status, {name: key[name] for name in made}) == (201, made)
    path = f"/admin/keys/{key['key_id']}"
    status, changed, _ = controller.call(path, "PATCH", changes)
    assert (status, {name: changed[name] for name in made}) == (200, made | changes)
    [stored] = Store(controller.redis.url, PATIENCE_S).api_keys()
    assert stored.sha256 == sha256_of(key["key"])
    assert {name: to_plain(stored)[name] for name in made} == made | changes
    status, refused, _ = controller.call(path, "PATCH", wrong)
    assert (status, {fault["field"].partition(".")[0] for fault in refused["error"]["faults"]}) == (422, set(wrong))
    assert controller.call("/admin/keys/none", "PATCH", changes)[0] == 404
    assert controller.call(path, "DELETE")[0] == 204


def test_a_dry_run_of_a_new_key_says_so_and_makes_none(controller: Controller) -> None:
    status, tried, _ = controller.call("/admin/keys?validate_only=true", "POST", {"k_max": 2})
    assert (status, tried["subject"], tried["changes"]) == (200, "a new key", [["k_max", None, 2]])
    assert controller.call("/admin/keys")[1]["keys"] == []


def test_what_each_role_may_read(controller: Controller, tokens: dict[str, str]) -> None:
    for path in ("policies", "canaries", "schedules", "engines", "freezes", "keys", "audit", "whoami"):
        assert controller.call(f"/admin/{path}", token=tokens["viewer"])[0] == 200, path
    assert controller.call("/admin/tokens", token=tokens["operator"])[0] == 403
    assert controller.call("/admin/tokens", token=tokens["admin"])[0] == 200
    assert controller.call("/admin/whoami", token=tokens["viewer"])[1]["role"] == "viewer"


def test_a_token_is_shown_once_rotated_and_revoked(controller: Controller) -> None:
    status, made, _ = controller.call("/admin/tokens", "POST", {"name": "night shift", "role": "viewer"})
    assert status == 201
    stored = Store(controller.redis.url, PATIENCE_S).admin_token(made["token_id"])
    assert stored is not None
    assert stored.sha256 == sha256_of(made["token"])
    listed = controller.call("/admin/tokens")[1]["tokens"]
    assert not any("token" in item or "sha256" in item for item in listed)
    assert controller.call("/admin/policies", token=made["token"])[0] == 200
    began = time.time()
    status, again, _ = controller.call(f"/admin/tokens/{made['token_id']}/rotate", "POST", {"expires_in_s": 3600})
    assert status == 200
    assert began <= again["expires_at"] - 3600 <= time.time()
    assert controller.call("/admin/policies", token=made["token"])[0] == 401
    assert controller.call("/admin/policies", token=again["token"])[0] == 200
    assert controller.call(f"/admin/tokens/{made['token_id']}", "DELETE")[0] == 204
    assert controller.call("/admin/policies", token=again["token"])[0] == 401
    assert controller.call(f"/admin/tokens/{made['token_id']}", "DELETE")[0] == 404
    text = json.dumps(newest(controller, 20))
    assert made["token"] not in text
    assert again["token"] not in text


def test_a_token_request_tells_every_fault(controller: Controller) -> None:
    body = {"name": " x", "role": "king", "expires_at": 5, "expires_in_s": -1, "colour": 1}
    status, answer, _ = controller.call("/admin/tokens", "POST", body)
    assert status == 422
    assert {item["field"] for item in answer["error"]["faults"]} == {*body}


@pytest.mark.parametrize("number", [10**400, 1e999, float("nan"), -(10**400)])
def test_a_number_without_bounds_is_the_callers_fault(controller: Controller, number: float) -> None:
    for path, method, body in (
        ("/admin/tokens", "POST", {"name": "x", "role": "viewer", "expires_in_s": number}),
        ("/admin/keys", "POST", {"expires_at": number}),
        ("/admin/keys", "POST", {"k_max": number}),
        ("/admin/freezes", "PUT", {"for_s": number}),
        ("/admin/freezes", "PUT", {"until": number}),
        ("/admin/policies/unbounded", "PUT", {"probe_ratio": number}),
        ("/admin/policies/unbounded", "PUT", {"classes": {"a": {"weight": number, "k_min": number}}}),
        ("/admin/canaries/unbounded", "PUT", {"policy": {}, "window_s": number}),
        ("/admin/model-routes", "PUT", {"routes": {"a": {"split": [{"model": "b", "weight": number}]}}}),
    ):
        status, answer, _ = controller.call(path, method, body)
        assert status == 422, (path, body, answer)


def test_what_has_expired_is_rotated_with_a_new_expiry_alone(controller: Controller) -> None:
    store = Store(controller.redis.url, PATIENCE_S)
    for place, asked, field in (("tokens", {"name": "late", "role": "viewer"}, "token"), ("keys", {}, "key")):
        made = controller.call(f"/admin/{place}", "POST", {**asked, "expires_in_s": 0.2})[1]
        path = f"/admin/{place}/{made[f'{field}_id']}/rotate"
        time.sleep(0.25)
        for query in ("", "?validate_only=true"):
            status, body, _ = controller.call(path + query, "POST")
            assert (status, [item["field"] for item in body["error"]["faults"]]) == (422, ["expires_in_s"])
            assert "has expired" in body["error"]["message"]
        began = time.time()
        status, again, _ = controller.call(path, "POST", {"expires_in_s": 3600})
        assert (status, began <= again["expires_at"] - 3600 <= time.time()) == (200, True)
        assert controller.call(path, "POST")[1]["expires_at"] == again["expires_at"]  # not over yet: it stays
        assert controller.call(path, "POST", {"expires_at": None})[1]["expires_at"] is None
    made = controller.call("/admin/keys", "POST", {"expires_in_s": 0.2})[1]
    time.sleep(0.25)
    path = f"/admin/keys/{made['key_id']}/rotate"
    assert controller.call(path, "POST", {"expires_in_s": 3600, "grace_s": 60})[0] == 200
    [stored] = [key for key in store.api_keys() if key.key_id == made["key_id"]]
    assert not stored.admits(sha256_of(made["key"]), time.time())  # a grace is for what is good, not for what was
    store.close()


def test_a_client_key_expires_and_is_rotated_with_grace(controller: Controller) -> None:
    store = Store(controller.redis.url, PATIENCE_S)
    began = time.time()
    status, made, _ = controller.call("/admin/keys", "POST", {"expires_in_s": 3600, "traffic_class": "code"})
    assert status == 201
    assert began <= made["expires_at"] - 3600 <= time.time()
    path = f"/admin/keys/{made['key_id']}"
    status, again, _ = controller.call(path + "/rotate", "POST", {"grace_s": 60})
    assert (status, again["key_id"], again["traffic_class"]) == (200, made["key_id"], "code")
    [stored] = [key for key in store.api_keys() if key.key_id == made["key_id"]]
    now = time.time()
    old, new = sha256_of(made["key"]), sha256_of(again["key"])
    assert stored.admits(old, now)
    assert stored.admits(new, now)
    assert not stored.admits(old, now + 61)
    assert stored.admits(new, now + 61)
    assert not stored.admits(new, now + 3601)
    assert controller.call(path, "PATCH", {"expires_at": None})[1]["expires_at"] is None
    assert controller.call(path + "/rotate", "POST", {"grace_s": "long"})[0] == 422
    assert controller.call(path, "PATCH", {"expires_at": 5})[0] == 422
    status, last, _ = controller.call(path + "/rotate", "POST")
    assert status == 200
    [stored] = [key for key in store.api_keys() if key.key_id == made["key_id"]]
    assert [stored.admits(sha256_of(item["key"]), now) for item in (made, again, last)] == [False, False, True]


PROXIED = [
    {"X_Forwarded_For": "203.0.113.5"},
    {"X_Forwarded_For": "127.0.0.1"},
    {"X_Forwarded_Host": "public.example"},
    {"Forwarded": "for=203.0.113.5"},
    {"Via": "1.1 proxy"},
    {"X_Real_IP": "203.0.113.5"},
    {"Host": "public.example"},
    {"Origin": "https://public.example"},
    {"Referer": "https://public.example/"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Host": "["},
    {"Host": "[x]"},
    {"Origin": "http://["},
]


@pytest.mark.parametrize("lines", [["Bearer ", f"Bearer {TOKEN} "], ["Basic YTpi", f"bearer  {TOKEN}\t"]])
def test_the_first_bearer_token_that_is_not_empty_counts(controller: Controller, lines: list[str]) -> None:
    connection = HTTPConnection(controller.url.removeprefix("http://"))
    for ordered in (lines, lines[::-1]):
        connection.putrequest("GET", "/admin/whoami")
        for line in ordered:
            connection.putheader("Authorization", line)
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["role"]) == (200, "admin")
    connection.close()


def test_a_proxy_on_the_same_machine_does_not_open_the_api() -> None:
    with running_controller(token=None) as controller:
        assert controller.call("/admin/policies", token=None)[0] == 200
        assert controller.call("/admin/whoami", token=None)[1] == {
            "name": "this machine", "role": "admin", "expires_at": None,
        }  # fmt: skip
        for headers in PROXIED:
            status, body, _ = controller.call("/admin/policies", token=None, **headers)
            assert (status, body["error"]["code"]) == (403, "admin_token_required"), headers
        host, port = controller.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as old:  # as nginx speaks, which names its own address
            old.sendall(f"GET /admin/policies HTTP/1.0\r\nHost: {host}:{port}\r\n\r\n".encode())
            assert old.recv(100).startswith(b"HTTP/1.1 403")
        made = controller.call("/admin/tokens", "POST", {"name": "far", "role": "viewer"}, token=None)[1]
        assert controller.call("/admin/policies", token=made["token"], X_Forwarded_For="203.0.113.5")[0] == 200


def test_nobody_is_served_without_a_token_unless_this_machine_is_trusted() -> None:
    with running_controller(token=None, trusts_this_machine=False) as controller:
        status, body, _ = controller.call("/admin/policies", token=None)
        assert (status, body["error"]["code"]) == (401, "invalid_admin_token")

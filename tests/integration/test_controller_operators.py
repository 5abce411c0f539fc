"""History, roles, audit, dry runs and freezes of a real controller on a real Redis, as operators use them."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import quote

import pytest

from specpilot.policy import keys
from specpilot.policy.access import Role, sha256_of
from specpilot.policy.redis_store import RedisStore
from tests.support.controller_program import Controller, running_controller
from tests.support.stack import until


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with running_controller() as found:
        yield found


@pytest.fixture(scope="module")
def tokens(controller: Controller) -> dict[str, str]:
    """A token of each role."""
    made = {}
    for role in Role:
        status, body, _ = controller.call("/admin/tokens", "POST", {"name": f"the {role}", "role": role})
        assert status == 201
        made[role.value] = body["token"]
    return made


def newest(controller: Controller, count: int = 1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = controller.call(f"/admin/audit?limit={count}")[1]["entries"]
    return found


class Audited:
    """What the audit got within a `with`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def __enter__(self) -> Self:
        found = newest(self._controller)
        self._before = found[0]["number"] if found else 0
        return self

    def __exit__(self, *_: object) -> None:
        path = f"/admin/audit?after={self._before}"
        self.entries: list[dict[str, Any]] = self._controller.call(path)[1]["entries"]


def test_every_version_is_listed_shown_compared_and_taken_back(controller: Controller, tokens: dict[str, str]) -> None:
    path = "/admin/policies/org/tuned"
    ada = tokens["operator"]
    assert controller.call(path + "?comment=first%20try", "PUT", {"k_max": 5}, ada)[0] == 201
    assert controller.call(path, "PATCH", {"k_max": None, "classes": {"code": {"weight": 2}}}, ada)[0] == 200
    status, body, _ = controller.call(path, "DELETE")
    assert (status, 'If-Match (now "2")' in body["error"]["message"]) == (428, True)
    assert controller.call(path, "DELETE", If_Match='"2"')[0] == 204
    versions = controller.call(path + "/versions")[1]["versions"]
    assert [(item["version"], item["cause"], item["author"], item["comment"]) for item in versions] == [
        (3, "delete", "--admin-token", ""),
        (2, "patch", "the operator", ""),
        (1, "put", "the operator", "first try"),
    ]
    assert versions[0]["policy"] is None
    assert [item["version"] for item in controller.call(path + "/versions?limit=1&before=3")[1]["versions"]] == [2]
    assert controller.call(path + "/versions/1")[1]["policy"]["k_max"] == 5
    assert controller.call(path + "/versions/9")[1]["error"]["code"] == "version_not_found"
    changes = controller.call(path + "/diff?from=1&to=2")[1]["changes"]
    assert [(item["field"], item["before"]) for item in changes] == [("classes.code", None), ("k_max", 5)]
    assert controller.call(path + "/diff?from=1")[0] == 422
    status, body, headers = controller.call(path + "/rollback", "POST", {"version": 1}, ada)
    assert (status, body["version"], body["policy"]["k_max"], headers["etag"]) == (201, 4, 5, '"4"')
    status, body, _ = controller.call(path + "/rollback", "POST", {"version": 2}, ada, If_Match='"4"')
    assert (status, body["version"], body["policy"]["classes"]["code"]["weight"]) == (200, 5, 2)
    assert controller.call(path + "/versions?limit=1")[1]["versions"][0]["comment"] == "back to version 2"
    assert controller.call(path + "/rollback", "POST", {"version": 1})[0] == 428
    assert controller.call(path + "/rollback", "POST", {"version": 1}, If_None_Match="*")[0] == 412
    status, body, _ = controller.call(path + "/rollback", "POST", {"version": 3}, If_Match='"5"')
    assert body["error"]["code"] == "version_is_deletion"
    assert controller.call(path + "/rollback", "POST", {"version": 77}, If_Match='"5"')[0] == 404
    assert controller.call(path + "/rollback", "POST", {"version": "one", "why": 1})[0] == 422
    assert controller.call(path + "/rollback", "POST", {"version": 1}, If_Match='"4"')[0] == 412


def test_a_promoted_canary_is_a_version_with_its_author(controller: Controller, tokens: dict[str, str]) -> None:
    assert controller.call("/admin/policies/birds", "PUT", {"static_k": 3})[0] == 201
    assert controller.call("/admin/canaries/birds", "PUT", {"policy": {"static_k": 5}})[0] == 201
    assert (
        controller.call("/admin/canary-promotions/birds?comment=looks%20good", "POST", None, tokens["operator"])[0]
        == 200
    )
    found = controller.call("/admin/policies/birds/versions")[1]["versions"][0]
    assert (found["cause"], found["author"], found["comment"]) == ("canary", "the operator", "looks good")
    entry = newest(controller)[0]
    assert (entry["action"], entry["subject"], entry["changes"]) == ("promote_canary", "birds", [["static_k", 3, 5]])


def test_two_operators_edit_at_once_and_the_second_is_told_what_changed(
    controller: Controller, tokens: dict[str, str]
) -> None:
    path = "/admin/policies/shared"
    assert controller.call(path, "PUT", {"k_max": 5})[0] == 201
    etag = controller.call(path)[2]["etag"]
    assert controller.call(path, "PUT", {"k_max": 4, "mode": "advise"}, tokens["operator"], If_Match=etag)[0] == 200
    with Audited(controller) as audited:
        status, body, _ = controller.call(path, "PUT", {"k_max": 6}, If_Match=etag)
    assert (status, body["error"]["code"]) == (412, "version_conflict")
    assert "Since then the operator changed k_max from 5 to 4; mode from act to advise" in body["error"]["message"]
    assert controller.call(path)[1]["policy"]["k_max"] == 4
    [entry] = audited.entries
    assert (entry["result"], entry["code"], entry["changes"]) == ("refused", "version_conflict", [])
    for method, place, asked in (("DELETE", path, None), ("POST", path + "/rollback", {"version": 1})):
        status, body, _ = controller.call(place, method, asked, If_Match=etag)
        assert (status, "the operator changed k_max from 5 to 4" in body["error"]["message"]) == (412, True)
    assert controller.call(path, "DELETE", If_Match='"2"')[0] == 204
    status, body, _ = controller.call(path, "PUT", {"k_max": 6}, If_Match=etag)
    assert (status, "there is no policy" in body["error"]["message"]) == (412, True)


def test_what_each_role_may_read(controller: Controller, tokens: dict[str, str]) -> None:
    for path in ("policies", "canaries", "schedules", "engines", "freezes", "keys", "audit", "whoami"):
        assert controller.call(f"/admin/{path}", token=tokens["viewer"])[0] == 200, path
    assert controller.call("/admin/tokens", token=tokens["operator"])[0] == 403
    assert controller.call("/admin/tokens", token=tokens["admin"])[0] == 200
    assert controller.call("/admin/whoami", token=tokens["viewer"])[1]["role"] == "viewer"


def test_a_token_is_shown_once_rotated_and_revoked(controller: Controller) -> None:
    status, made, _ = controller.call("/admin/tokens", "POST", {"name": "night shift", "role": "viewer"})
    assert status == 201
    stored = RedisStore(controller.redis.url).admin_token(made["token_id"])
    assert stored is not None
    assert stored.sha256 == sha256_of(made["token"])
    listed = controller.call("/admin/tokens")[1]["tokens"]
    assert not any("token" in item or "sha256" in item for item in listed)
    assert controller.call("/admin/policies", token=made["token"])[0] == 200
    status, again, _ = controller.call(f"/admin/tokens/{made['token_id']}/rotate", "POST", {"expires_in_s": 3600})
    assert status == 200
    assert again["expires_at"] == pytest.approx(time.time() + 3600, abs=5)
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


def test_the_audit_tells_who_did_what_from_where_with_before_and_after(
    controller: Controller, tokens: dict[str, str]
) -> None:
    with Audited(controller) as audited:
        controller.call("/admin/policies/seen?comment=why%20not", "PUT", {"mode": "advise"}, tokens["operator"])
        controller.call("/admin/policies/seen", "PATCH", {"mode": "off"}, tokens["operator"])
        controller.call("/admin/keys", "POST", {"requests_per_minute": 6}, tokens["admin"])
    put, patch, key = audited.entries
    assert (put["who"], put["role"], put["source"]) == ("the operator", "operator", "127.0.0.1")
    assert (put["action"], put["subject"], put["status"], put["comment"]) == ("put_policy", "seen", 201, "why not")
    assert put["changes"] == [["mode", "act", "advise"]]
    assert patch["changes"] == [["mode", "advise", "off"]]
    assert (key["action"], key["changes"]) == ("add_key", [["requests_per_minute", None, 6]])
    assert put["at"] == pytest.approx(time.time(), abs=10)


def test_every_entry_of_the_audit_is_one_line_of_json_on_standard_error(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, running_controller(log=log) as controller:
        comment = quote('two\nlines, "quotes", \u2028 and {"audit": {}}')
        assert controller.call(f"/admin/policies/said?comment={comment}", "PUT", {"mode": "advise"})[0] == 201
        assert controller.call("/admin/policies/said", "PUT", {"k_mx": 5})[0] == 422
        assert controller.call("/admin/policies/said", "DELETE", token="nobody's")[0] == 401
        assert controller.call("/admin/freezes/said", "PUT", {"for_s": 0.1})[0] == 200
        until(lambda: newest(controller)[0]["action"] == "end_freeze", 10.0)
        entries = newest(controller, 100)[::-1]
    lines = (tmp_path / "log").read_text().split("\n")
    told = [json.loads(line)["audit"] for line in lines if line.startswith('{"audit"')]
    assert [item | {"number": 0} for item in entries] == told
    assert [item["result"] for item in told] == ["done", "refused", "refused", "done", "done"]


def test_a_dry_run_says_what_would_change_and_writes_nothing(controller: Controller) -> None:
    path = "/admin/policies/tried"
    with Audited(controller) as audited:
        status, body, _ = controller.call(path + "?validate_only=true", "PUT", {"k_max": 5})
        assert (status, body["dry_run"], body["version"], body["changes"]) == (200, True, 1, [["k_max", None, 5]])
        assert controller.call(path)[0] == 404
    assert audited.entries == []
    assert controller.call(path + "?validate_only=true", "PUT", {"k_max": 500})[0] == 422
    assert controller.call(path, "PUT", {"k_max": 5})[0] == 201
    assert controller.call(path + "?validate_only=true", "PUT", {"k_max": 4})[0] == 428
    for method, where, body, status in (
        ("PUT", "policies/tried", {"k_max": 4}, 200),
        ("PATCH", "policies/tried", {"k_max": 4}, 200),
        ("POST", "policies/tried/rollback", {"version": 1}, 200),
        ("DELETE", "policies/tried", None, 200),
        ("PUT", "canaries/tried", {"policy": {"k_max": 3}}, 200),
        ("DELETE", "canaries/tried", None, 404),
        ("POST", "canary-promotions/tried", None, 404),
        ("PUT", "freezes/tried", {}, 200),
        ("PUT", "freezes", {"hold": "static"}, 200),
        ("DELETE", "freezes/tried", None, 404),
        ("POST", "keys", {"requests_per_minute": 5}, 200),
        ("POST", "tokens", {"name": "x", "role": "viewer"}, 200),
    ):
        headers = {"If_Match": '"1"'} if where.startswith("policies/tried") else {}
        found, answer, _ = controller.call(f"/admin/{where}?validate_only=true", method, body, **headers)
        assert found == status, (where, answer)
        assert status != 200 or answer["dry_run"], where
    assert controller.call("/admin/policies/tried/versions")[1]["versions"][0]["version"] == 1
    assert controller.call("/admin/canaries/tried")[0] == 404
    assert controller.call("/admin/freezes")[1]["freezes"] == []
    assert controller.call("/admin/policies/tried", "DELETE", If_Match='"1"')[0] == 204
    assert controller.call(path + "?validate_only=true", "PUT", {})[1]["version"] == 3


def test_without_a_policy_changes_are_told_from_the_default_mode() -> None:
    """Its writes would switch the model from advise to act, so that is what they say."""
    path, switched = "/admin/policies/quiet", ["mode", "advise", "act"]
    with running_controller(arguments=("--default-mode", "advise")) as controller:
        assert controller.call("/admin/policies")[1] == {"policies": [], "default_mode": "advise"}
        assert controller.call(path + "?validate_only=true", "PUT", {"mode": "act"})[1]["changes"] == [switched]
        assert controller.call(path + "?validate_only=true", "PUT", {"mode": "advise"})[1]["changes"] == []
        canary = controller.call("/admin/canaries/quiet?validate_only=true", "PUT", {"policy": {"k_max": 5}})[1]
        assert canary["changes"] == [["k_max", None, 5], switched]
        assert controller.call(path, "PUT", {"mode": "act"})[0] == 201
        assert newest(controller)[0]["changes"] == [switched]
        [change] = controller.call(path + "/diff?from=0&to=1")[1]["changes"]
        assert (change["field"], change["before"], change["after"]) == tuple(switched)
        dry = controller.call(path + "?validate_only=true", "DELETE", If_Match='"1"')[1]
        assert dry["changes"] == [["mode", "act", "advise"]]
        assert controller.call(path, "DELETE", If_Match='"1"')[0] == 204
        assert newest(controller)[0]["changes"] == [["mode", "act", "advise"]]


def test_one_unreadable_document_leaves_the_calls_about_the_others(controller: Controller) -> None:
    stored = RedisStore(controller.redis.url)
    made = controller.call("/admin/keys", "POST", {})[1]["key_id"]
    for key in (keys.FREEZES, keys.API_KEYS, keys.ADMIN_TOKENS):
        stored._redis.hset(key, "bad", "{nonsense")
    [frozen] = controller.call("/admin/freezes")[1]["freezes"]
    assert (frozen["model"], frozen["hold"], frozen["until"]) == ("bad", "current", None)
    assert controller.call("/admin/freezes/bad", "PUT", {})[1]["error"]["code"] == "frozen_by_another"
    assert controller.call("/admin/freezes/bad", "PUT", {"replace": True})[0] == 200
    stored._redis.hset(keys.FREEZES, "bad", "{nonsense")
    assert controller.call("/admin/freezes/bad", "DELETE")[0] == 204
    assert controller.call("/admin/freezes")[1]["freezes"] == []
    assert "bad" not in {item["key_id"] for item in controller.call("/admin/keys")[1]["keys"]}
    assert controller.call("/admin/tokens")[0] == 200
    assert controller.call(f"/admin/keys/{made}", "DELETE")[0] == 204
    for path in ("/admin/keys/bad", "/admin/tokens/bad"):
        assert controller.call(path + "?validate_only=true", "DELETE")[0] == 404
        assert controller.call(path, "DELETE")[0] == 204
        assert controller.call(path, "DELETE")[0] == 404
    stored.close()


def test_a_freeze_is_begun_listed_and_lifted(controller: Controller, tokens: dict[str, str]) -> None:
    path = "/admin/freezes/org/still"
    asked = {"hold": "static", "for_s": 600}
    status, body, _ = controller.call(path + "?comment=launch", "PUT", asked, tokens["operator"])
    assert (status, body["hold"], body["author"], body["comment"]) == (200, "static", "the operator", "launch")
    assert body["until"] == pytest.approx(time.time() + 600, abs=5)
    assert controller.call("/admin/freezes", "PUT")[0] == 200
    found = {item["model"]: item for item in controller.call("/admin/freezes")[1]["freezes"]}
    assert (found["*"]["hold"], found["*"]["until"], found["org/still"]["hold"]) == ("current", None, "static")
    assert controller.call("/admin/freezes", "DELETE")[0] == 204
    assert controller.call(path, "DELETE")[0] == 204
    assert controller.call(path, "DELETE")[1]["error"]["code"] == "not_frozen"
    status, body, _ = controller.call(path, "PUT", {"hold": "tight", "until": 5, "for_s": 1, "x": 1})
    assert status == 422
    assert {item["field"] for item in body["error"]["faults"]} == {"hold", "until", "for_s", "x"}
    assert controller.call(path, "PUT", {"for_s": 0.2})[0] == 200
    time.sleep(0.25)
    assert controller.call("/admin/freezes")[1]["freezes"] == []
    assert controller.call(path, "DELETE")[1]["error"]["code"] == "not_frozen"  # its time is over


def test_a_freeze_of_somebody_else_is_not_replaced_unless_that_is_said(
    controller: Controller, tokens: dict[str, str]
) -> None:
    path, ada = "/admin/freezes/org/shared", tokens["operator"]
    assert controller.call(path + "?comment=incident", "PUT", {"hold": "static"}, ada)[0] == 200
    for query in ("", "?validate_only=true"):
        status, body, _ = controller.call(path + query, "PUT", {"for_s": 60})
        assert (status, body["error"]["code"]) == (409, "frozen_by_another")
        assert "is frozen by the operator until it is lifted (incident)" in body["error"]["message"]
    assert controller.call(path, "PUT", {"for_s": 60, "replace": "yes"})[0] == 422
    found = {item["model"]: item for item in controller.call("/admin/freezes")[1]["freezes"]}
    assert (found["org/shared"]["hold"], found["org/shared"]["until"]) == ("static", None)
    assert controller.call(path, "PUT", {"hold": "current"}, ada)[0] == 200  # one's own
    assert controller.call(path, "PUT", {"for_s": 0.2, "replace": True})[1]["author"] == "--admin-token"
    time.sleep(0.25)
    assert controller.call(path, "PUT", {}, ada)[0] == 200  # one that is over is in nobody's way
    assert controller.call(path, "DELETE")[0] == 204


def test_what_has_expired_is_rotated_with_a_new_expiry_alone(controller: Controller) -> None:
    store = RedisStore(controller.redis.url)
    for place, asked, field in (("tokens", {"name": "late", "role": "viewer"}, "token"), ("keys", {}, "key")):
        made = controller.call(f"/admin/{place}", "POST", {**asked, "expires_in_s": 0.2})[1]
        path = f"/admin/{place}/{made[f'{field}_id']}/rotate"
        time.sleep(0.25)
        for query in ("", "?validate_only=true"):
            status, body, _ = controller.call(path + query, "POST")
            assert (status, [item["field"] for item in body["error"]["faults"]]) == (422, ["expires_in_s"])
            assert "has expired" in body["error"]["message"]
        status, again, _ = controller.call(path, "POST", {"expires_in_s": 3600})
        assert (status, again["expires_at"]) == (200, pytest.approx(time.time() + 3600, abs=5))
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
    store = RedisStore(controller.redis.url)
    status, made, _ = controller.call("/admin/keys", "POST", {"expires_in_s": 3600, "traffic_class": "code"})
    assert status == 201
    assert made["expires_at"] == pytest.approx(time.time() + 3600, abs=5)
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


def test_two_writers_at_once_leave_one_version_and_one_refusal(controller: Controller) -> None:
    path = "/admin/policies/raced"
    assert controller.call(path, "PUT", {})[0] == 201
    statuses: list[int] = []

    def write(k: int) -> None:
        statuses.append(controller.call(path, "PUT", {"k_min": k}, If_Match='"1"')[0])

    with Audited(controller) as audited:
        threads = [Thread(target=write, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(statuses) == [200, *[412] * 5]
    assert sorted(entry["result"] for entry in audited.entries) == ["done", *["refused"] * 5]
    assert controller.call(path)[1]["version"] == 2


def test_redis_gone_fails_with_the_first_admins_token_and_with_a_named_one(
    controller: Controller, tokens: dict[str, str]
) -> None:
    saved = RedisStore(controller.redis.url).admin_tokens()
    controller.redis.stop()
    try:
        assert controller.call("/admin/policies")[0] == 503
        assert controller.call("/admin/policies/x", "PUT", {}, tokens["operator"])[0] == 503
    finally:
        controller.redis.start()
    store = RedisStore(controller.redis.url)
    for token in saved:
        assert store.put_admin_token(token, None)


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
]


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

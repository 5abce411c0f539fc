"""Versions of policies, edits at once, dry runs and the audit: what operators see of each other's writes."""

import json
import time
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import quote

from tests.support.controller_program import Controller, newest, running_controller
from tests.support.stack import until


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


def test_the_audit_tells_who_did_what_from_where_with_before_and_after(
    controller: Controller, tokens: dict[str, str]
) -> None:
    began = time.time()
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
    assert began <= put["at"] <= time.time()


def test_every_entry_of_the_audit_is_one_line_of_json_on_standard_error(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, running_controller(log=log) as controller:
        comment = quote('two\nlines, "quotes", \u2028 and {"audit": {}}')
        assert controller.call(f"/admin/policies/said?comment={comment}", "PUT", {"mode": "advise"})[0] == 201
        assert controller.call("/admin/policies/said", "PUT", {"k_mx": 5})[0] == 422
        assert controller.call("/admin/policies/said", "DELETE", token="nobody's")[0] == 401
        assert controller.call("/admin/freezes/said", "PUT", {"for_s": 0.1})[0] == 200
        until(lambda: newest(controller)[0]["action"] == "end_freeze")
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
    for method, where in (("DELETE", "canaries"), ("POST", "canary-promotions"), ("DELETE", "freezes")):
        assert controller.call(f"/admin/{where}/tried?validate_only=true", method)[0] == 404, where
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

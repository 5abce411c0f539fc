"""Canaries of a real controller, over HTTP and on the command line: begun, refused, ended, promoted."""

import json
from pathlib import Path

from tests.support.controller_program import Controller, newest
from tests.support.stack import until


def test_a_canary_is_started_looked_at_promoted_and_aborted(controller: Controller) -> None:
    path = "/admin/canaries/org/tried"
    assert controller.call("/admin/policies/org/tried", "PUT", {"static_k": 3})[0] == 201
    assert controller.call(path)[1]["error"]["code"] == "canary_not_found"
    status, body, _ = controller.call(path, "PUT", {"policy": {"static_k": 5}, "share_ratio": 0.25})
    assert (status, body["base_version"], body["outcome"]) == (201, 1, None)
    status, body, _ = controller.call(path, "PUT", {"policy": {}})
    assert (status, body["error"]["code"]) == (409, "canary_running")
    assert "runs since 20" in body["error"]["message"]  # a date
    assert controller.call(path)[1]["evidence"]["blocks_at_most"] == 45
    assert [item["canary"]["policy"]["model"] for item in controller.call("/admin/canaries")[1]["canaries"]] == [
        "org/tried"
    ]
    shown = controller.command("policy", "canary", "show", "org/tried")
    assert json.loads(shown.stdout)["canary"]["share_ratio"] == 0.25
    assert "canary: runs; 0 of 45 blocks, lost: none" in shown.stderr
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

    def outcome() -> str | None:
        found: str | None = controller.call("/admin/canaries/replaced")[1]["outcome"]
        return found

    until(outcome)
    assert outcome() == "policy_changed"
    assert controller.call("/admin/policies/replaced")[1]["version"] == 1


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

"""Freezes by the admin API: begun, listed, lifted, and not replaced unseen."""

import time

from tests.support.controller_program import Controller


def test_a_freeze_is_begun_listed_and_lifted(controller: Controller, tokens: dict[str, str]) -> None:
    path = "/admin/freezes/org/still"
    asked, began = {"hold": "static", "for_s": 600}, time.time()
    status, body, _ = controller.call(path + "?comment=launch", "PUT", asked, tokens["operator"])
    assert (status, body["hold"], body["author"], body["comment"]) == (200, "static", "the operator", "launch")
    assert began <= body["until"] - 600 <= time.time()
    assert controller.call("/admin/freezes", "PUT")[0] == 200
    found = {item["model"]: item for item in controller.call("/admin/freezes")[1]["freezes"]}
    assert (found["*"]["hold"], found["*"]["until"], found["org/still"]["hold"]) == ("current", None, "static")
    assert controller.call("/admin/freezes", "DELETE")[0] == 204
    assert controller.call(path, "DELETE")[0] == 204
    assert controller.call(path, "DELETE")[1]["error"]["code"] == "not_frozen"
    for wrong in ({"hold": "tight", "until": 5, "for_s": 0, "x": 1}, {"for_s": 60}):
        status, body, _ = controller.call(path, "PUT", {"until": time.time() + 60, **wrong})
        assert (status, {item["field"] for item in body["error"]["faults"]}) == (422, {*wrong})
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

"""What operators do in the console besides policies: the token, freezes, keys, tokens and model routes."""

import time
from contextlib import ExitStack

import pytest

from tests.simulation.engine import MODEL
from tests.support.browser import NEEDS_BROWSER, Browser
from tests.support.console_pages import PAGES, show
from tests.support.controller_program import TOKEN, Controller, running_controller
from tests.support.issuer import Issuer
from tests.support.redis_rights import NO_CHANNEL, Rights
from tests.support.redis_server import NEEDS_SYSTEM
from tests.support.stack import until

pytestmark = NEEDS_BROWSER


def test_the_token_is_typed_once_and_a_wrong_one_is_asked_for_again(browser: Browser, controller: Controller) -> None:
    browser.run("sessionStorage.clear()")
    browser.open(f"{controller.url}/")
    for token in ("wrong", TOKEN):
        browser.until("return document.getElementById('ask').open")
        browser.fill("Token", token)
        browser.press("Use it")
    browser.sees("--admin-token, admin")
    browser.open(f"{controller.url}/#audit")
    browser.sees("live,")
    assert not browser.run("return document.getElementById('ask').open")


def test_what_is_frozen_is_shown_on_every_page_and_lifted(
    browser: Browser, controller: Controller, engine: None
) -> None:
    show(browser, controller, "fleet")
    browser.press("Freeze…")
    browser.fill("of", MODEL)
    browser.fill("minutes", "30")
    browser.press("Do it")
    for page in PAGES:
        show(browser, controller, page)
        browser.sees(f"{MODEL} is frozen on K as it was when the freeze began, by --admin-token")
    show(browser, controller, "fleet")
    browser.sees("an operator froze the model")
    browser.press("Lift")
    browser.press("Do it")
    browser.until("return !document.getElementById('freezes').textContent")
    assert controller.call("/admin/freezes")[1]["freezes"] == []


def test_keys_and_tokens_are_made_and_shown_once(browser: Browser, controller: Controller) -> None:
    show(browser, controller, "access")
    browser.fill("traffic class", "code")
    browser.fill("most K", "0")
    browser.fill("requests at once", "4")
    browser.fill("models, by commas", "big, small")
    browser.press("Make a client key")
    browser.sees("shown only this once: sk-")
    [made] = controller.call("/admin/keys")[1]["keys"]
    assert (made["k_max"], made["max_concurrent_requests"], made["allowed_models"]) == (0, 4, ["big", "small"])
    browser.sees("4 requests at once, K at most 0")
    browser.fill("name", "night shift")
    browser.press("Make a token")
    browser.sees("Token night shift (viewer), shown only this once: spt_")
    browser.press("Revoke")
    browser.press("Do it")
    until(lambda: not controller.call("/admin/keys")[1]["keys"])


@NEEDS_SYSTEM
def test_a_write_that_is_not_announced_says_so_until_the_next_write(browser: Browser) -> None:
    with ExitStack() as stack:
        rights = stack.enter_context(Rights())
        rights.set(*NO_CHANNEL)
        controller = stack.enter_context(running_controller(redis_url=rights.url))
        browser.open(f"{controller.url}/console/style.css")
        browser.run("sessionStorage.setItem('token', arguments[0])", TOKEN)
        show(browser, controller, "access")
        browser.press("Make a client key")
        browser.sees("shown only this once: sk-")
        browser.sees("written, but not announced")
        rights.set("&{specpilot}:*")
        browser.press("Make a client key")
        browser.until("return !document.getElementById('notice').textContent")


def test_a_key_is_changed_and_what_has_expired_gets_a_new_expiry(browser: Browser, controller: Controller) -> None:
    key = controller.call("/admin/keys", "POST", {"traffic_class": "code", "k_max": 3, "expires_in_s": 0.1})[1]
    token = controller.call("/admin/tokens", "POST", {"name": "brief", "role": "viewer", "expires_in_s": 0.1})[1]
    time.sleep(0.2)
    show(browser, controller, "access")
    browser.sees("expired ")
    browser.press("Change")
    browser.fill("classes, by commas", "code, chat")
    browser.fill("most K", "")
    browser.fill("days from now", "30")
    browser.press("Do it")
    browser.sees("allowed_classes")  # the dry run's answer
    browser.fill("Comment", "more classes")
    browser.press("Do it")
    browser.sees("may ask for code, chat")
    [found] = controller.call("/admin/keys")[1]["keys"]
    assert (found["traffic_class"], found["allowed_classes"], found["k_max"]) == ("code", ["code", "chat"], None)
    assert found["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=60)
    entry = controller.call("/admin/audit?limit=1")[1]["entries"][0]
    assert (entry["action"], entry["comment"]) == ("change_key", "more classes")
    assert {field for field, _, _ in entry["changes"]} == {"allowed_classes", "k_max", "expires_at"}
    browser.press("Rotate")
    browser.fill("hours that the old key is good", "2")
    browser.fill("does not expire", "yes")
    browser.press("Do it")
    browser.sees("shown only this once: sk-")
    [found] = controller.call("/admin/keys")[1]["keys"]
    assert (found["key_id"], found["expires_at"]) == (key["key_id"], None)
    assert found["previous_expires_at"] == pytest.approx(time.time() + 7200, abs=60)
    assert controller.call(f"/admin/keys/{key['key_id']}", "DELETE")[0] == 204
    show(browser, controller, "access")
    others = [item for item in controller.call("/admin/tokens")[1]["tokens"] if item["token_id"] != token["token_id"]]
    for item in others:
        assert controller.call(f"/admin/tokens/{item['token_id']}", "DELETE")[0] == 204
    show(browser, controller, "access")
    browser.press("Rotate")
    browser.press("Do it")
    browser.sees("is missing, and it has expired")
    browser.press("Rotate")
    browser.fill("days from now", "1")
    browser.press("Do it")
    browser.sees("shown only this once: spt_")
    assert controller.call(f"/admin/tokens/{token['token_id']}", "DELETE")[0] == 204
    assert browser.complaints() == []


def test_model_routes_are_set_changed_and_removed(browser: Browser, controller: Controller) -> None:
    show(browser, controller, "models")
    browser.sees("No name has a route")
    browser.fill("name that clients ask for", "chat")
    browser.fill("models, with weights: big=9, new", "big=9, new")
    browser.fill("else, while none of these runs", "small")
    browser.press("Set it")
    browser.sees("routes.chat")
    assert controller.call("/admin/model-routes")[1]["version"] == 0
    browser.fill("Comment", "a little of the new one")
    browser.press("Do it")
    browser.sees("big 90.0 %, new 10.0 %")
    found = controller.call("/admin/model-routes")[1]["routes"]["chat"]
    assert found == {"split": [{"model": "big", "weight": 9.0}, {"model": "new", "weight": 1.0}], "fallback": ["small"]}
    assert controller.call("/admin/audit?limit=1")[1]["entries"][0]["comment"] == "a little of the new one"
    browser.press("Change")
    browser.fill("models, with weights: big=9, new", "big=many")
    browser.press("Set it")
    browser.sees("weight")
    assert (
        controller.call("/admin/model-routes", "PATCH", {"routes": {"fast": {"split": [{"model": "small"}]}}})[0] == 200
    )
    browser.fill("models, with weights: big=9, new", "new")
    browser.press("Set it")
    browser.sees("is at version 2, not")  # and what is there now is shown
    browser.press("Set it")
    browser.press("Do it")
    browser.until("return !document.body.innerText.includes('10.0 %')")
    routes = controller.call("/admin/model-routes")[1]["routes"]
    assert (routes["chat"]["split"], [*routes]) == ([{"model": "new", "weight": 1.0}], ["chat", "fast"])
    for left in (1, 0):
        browser.press("Remove")
        browser.press("Do it")
        browser.until("return document.querySelectorAll('#page tbody tr').length === arguments[0]", left)
    browser.sees("No name has a route")
    assert controller.call("/admin/model-routes")[1]["routes"] == {}
    assert browser.complaints() == []


def test_a_token_without_a_role_is_asked_to_be_replaced(browser: Browser) -> None:
    issuer = Issuer()
    wanted = ("--oidc-issuer", issuer.url, "--oidc-audience", "specpilot", "--oidc-roles", "sre=operator")
    with running_controller(arguments=wanted) as known:
        browser.open(f"{known.url}/console/style.css")
        browser.run("sessionStorage.setItem('token', arguments[0])", issuer.token(groups=["guests"]))
        browser.open("about:blank")
        browser.open(f"{known.url}/")
        browser.until("return document.getElementById('ask').open")
        browser.sees("ada@example.com has no role here")
        browser.fill("Token", issuer.token())
        browser.press("Use it")
        browser.sees("ada@example.com, operator")
    issuer.close()


def test_somebody_elses_freeze_is_replaced_when_that_is_wanted(
    browser: Browser, controller: Controller, engine: None
) -> None:
    ada = controller.call("/admin/tokens", "POST", {"name": "ada", "role": "operator"})[1]
    path = f"/admin/freezes/{MODEL}"
    assert controller.call(path, "PUT", {"hold": "static"}, ada["token"])[0] == 200
    show(browser, controller, "fleet")
    for answer, author in (("Leave it", "ada"), ("Do it", "--admin-token")):
        browser.press("Freeze…")
        browser.fill("of", MODEL)
        browser.press("Do it")
        browser.sees("Replace somebody else's freeze?")
        browser.sees("is frozen by ada until it is lifted")
        browser.press(answer)
        browser.until("return !document.getElementById('confirm').open")
        browser.sees(f"by {author}")
    assert controller.call(path, "DELETE")[0] == 204
    assert controller.call(f"/admin/tokens/{ada['token_id']}", "DELETE")[0] == 204
    assert browser.complaints() == []

"""The console in a real browser, on a real controller that steers real HTTP engines: an operator's whole day."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot.bench.simulation.engine import MODEL
from specpilot.policy import keys
from specpilot.policy.records import Lease
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
from tests.support import axe
from tests.support.browser import CHROMIUM, DRIVER, Browser, running_browser
from tests.support.controller_engine import HttpEngine
from tests.support.controller_program import TOKEN, Controller, running_controller
from tests.support.issuer import Issuer

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)"),
]
CONSOLE = Path(__file__).parents[2] / "controller" / "admin" / "console"
_RIGHT_EDGE = (
    "return Math.max(...[...document.querySelectorAll('section')].map((s) => s.getBoundingClientRect().right))"
)
_CUT_OFF = """
return [...document.querySelectorAll('.scroll:has(> table:not(.heat))')]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel);
"""
PAGES = ("fleet", "policies", "canaries", "models", "audit", "access")


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    with running_controller() as found:
        yield found


@pytest.fixture(scope="module")
def engine(controller: Controller) -> Iterator[None]:
    """An engine with traffic."""
    store, is_over = RedisStore(controller.redis.url), threading.Event()

    async def live() -> None:
        async with HttpEngine(store):
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    yield
    is_over.set()
    thread.join(10)
    store.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture
def browser(started: Browser, controller: Controller) -> Browser:
    """A tab that shows the console, let in as the first admin."""
    started.look(1800, 1000)
    started.open(f"{controller.url}/console/style.css")  # of the same origin: what the tab keeps is emptied
    started.run("sessionStorage.clear(); sessionStorage.setItem('token', arguments[0])", TOKEN)
    started.complaints()
    return started


def show(browser: Browser, controller: Controller, page: str) -> None:
    browser.open("about:blank")
    browser.open(f"{controller.url}/#{page}")
    browser.sees("live,")


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


def test_a_policy_is_made_watched_tried_rolled_back_and_found_in_the_audit(
    browser: Browser, controller: Controller, engine: None
) -> None:
    show(browser, controller, "fleet")
    browser.sees(f"{MODEL} · cpu")
    browser.until("return document.querySelectorAll('.heat td').length > 1")
    browser.until("return document.querySelectorAll('polygon.interval').length > 0")
    browser.sees("too few")  # windows of the control group
    browser.sees(" s ago")
    assert "its clock is" not in browser.text()
    browser.sees("What adaptive K gained over the static K, by day")
    # All classes share the rows of `default`, which are the controller's estimate of the engines' choice.
    heads = ",".join(f"band {band}" for band in range(8))
    browser.until(
        f"return [...document.querySelectorAll('.heat tbody th')].map((one) => one.textContent).join(',') === {heads!r}"
    )
    show(browser, controller, "policies")
    browser.sees(f"Policy of {MODEL}: none yet")
    browser.fill("static k", "1")
    browser.fill("hold out ratio", "0.05")
    browser.fill("name of a new class", "code")
    browser.press("Add class")
    browser.fill("k_max of code", "4")
    browser.sees("Would be version 1.")
    browser.sees("classes.code")
    browser.sees("tokens/s and engine")
    assert controller.call(f"/admin/policies/{MODEL}")[0] == 404
    browser.press("Write it")
    browser.fill("Comment", "first")
    browser.press("Do it")
    browser.sees(f"Policy of {MODEL}, version 1")
    found = controller.call(f"/admin/policies/{MODEL}")[1]["policy"]
    assert (found["static_k"], found["hold_out_ratio"], found["classes"]["code"]["k_max"]) == (1, 0.05, 4)
    browser.fill("k max", "900")
    browser.sees("must be between 0 and 64")
    assert browser.run(
        "return [...document.querySelectorAll('button')].find((b) => b.textContent === 'Write it').disabled"
    )
    browser.fill("k max", "3")
    browser.sees("Would be version 2.")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees(f"Policy of {MODEL}, version 2")
    browser.press("Go back to it")
    browser.press("Do it")
    browser.sees("back to version 1")
    assert controller.call(f"/admin/policies/{MODEL}")[1]["policy"]["k_max"] is None
    browser.fill("k max", "2")
    browser.press("Try as canary")
    browser.press("Do it")
    browser.sees(f"{MODEL}: runs")
    browser.press("Abort")
    browser.press("Do it")
    browser.sees(f"{MODEL}: ended, aborted")
    show(browser, controller, "audit")
    for words in ("put policy", "rollback policy", "start canary", "abort canary", "“first”"):
        browser.sees(words)
    assert browser.complaints() == []


def test_a_policy_is_edited_as_json_and_its_versions_are_compared(browser: Browser, controller: Controller) -> None:
    assert controller.call("/admin/policies/written", "PUT", {"k_max": 5})[0] == 201
    show(browser, controller, "policies")
    browser.press("written")
    browser.sees("Policy of written, version 1")
    browser.press("As JSON")
    for text, told in (
        ("{", "This is no JSON"),
        ("[1]", "A policy is an object: { … }"),
        ('{"model": "written", "k_mx": 3}', "k_mx is not a known field"),
        ('{"model": "written", "classes": {"code": null}}', "The form cannot show this."),
    ):
        browser.fill("The policy as JSON", text)
        browser.sees(told)
        assert browser.run(
            "return [...document.querySelectorAll('button')].find((b) => b.textContent === 'Write it').disabled"
        )
    browser.fill("The policy as JSON", '{"model": "written", "k_max": 3, "classes": {"code": {"weight": 2}}}')
    browser.sees("Would be version 2.")
    for label, value in (("k max", "3"), ("weight of code", "2")):
        assert browser.value(label) == value
    browser.fill("weight of code", "4")  # the form and the JSON are one
    assert '"weight": 4' in browser.value("The policy as JSON")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees("Policy of written, version 2")
    found = controller.call("/admin/policies/written")[1]["policy"]
    assert (found["k_max"], found["classes"]["code"]["weight"]) == (3, 4)
    browser.press("Diff")
    browser.sees("Version 1 → 2")
    told = browser.run("return [...document.querySelectorAll('#page [aria-label=Changes]')].pop().innerText")
    for words in ("classes.code", "k_max\t5\t3"):
        assert words in told
    browser.press_labelled("diff of version 1")
    browser.sees("Version 0 (the defaults) → 1")
    assert browser.complaints() == []


def test_a_policy_for_a_model_in_the_default_mode_is_written(browser: Browser) -> None:
    with running_controller(arguments=("--default-mode", "advise")) as quiet:
        browser.open(f"{quiet.url}/console/style.css")
        browser.run("sessionStorage.clear(); sessionStorage.setItem('token', arguments[0])", TOKEN)
        show(browser, quiet, "policies")
        browser.fill("another model", "quiet")
        browser.press("Open")
        browser.sees("The defaults hold.")
        assert browser.value("mode") == "advise"
        browser.fill("mode", "act")
        browser.sees("Would be version 1.")
        browser.press("Write it")
        browser.press("Do it")
        browser.sees("Policy of quiet, version 1")
        assert quiet.call("/admin/policies/quiet")[1]["policy"]["mode"] == "act"


def test_a_canary_is_promoted(browser: Browser, controller: Controller) -> None:
    assert controller.call("/admin/policies/tried", "PUT", {"k_max": 5})[0] == 201
    assert controller.call("/admin/canaries/tried", "PUT", {"policy": {"k_max": 4}})[0] == 201
    show(browser, controller, "canaries")
    browser.sees("tried: runs")
    browser.press("Its policy")
    browser.sees('"k_max": 4')
    browser.press("Promote")
    browser.until("return document.getElementById('confirm').innerText.includes('k_max')")
    browser.fill("Comment", "chat is faster")
    browser.press("Do it")
    browser.sees("tried: ended, promoted")
    assert controller.call("/admin/policies/tried")[1]["policy"]["k_max"] == 4
    version = controller.call("/admin/policies/tried/versions")[1]["versions"][0]
    assert (version["cause"], version["comment"]) == ("canary", "chat is faster")
    assert browser.complaints() == []


def test_k_is_mapped_by_class_and_band(browser: Browser, controller: Controller) -> None:
    store = RedisStore(controller.redis.url)
    lease = Lease("test", int(store._redis.get(keys.FENCE)))
    rows = {
        f"{name}:{band}": (KRange(1, 4, band), KRange(5, 8, band // 2))
        for name in ("code", "default")
        for band in range(8)
    }
    pinned = {"batch": (KRange(1, 8, 1),), "default": (KRange(1, 8, 3),)}
    store.publish_schedule(Schedule("mapped", "gpu", 1, time.time(), 60.0, 0.0, {**rows, **pinned}), lease)
    show(browser, controller, "fleet")
    browser.press("mapped · gpu")
    browser.until("return document.querySelectorAll('.heat tbody tr').length === 17")
    text = "(row) => [...row.children].map((cell) => cell.textContent)"
    cells = browser.run(f"return [...document.querySelectorAll('.heat tr')].map({text})")
    assert cells[:3] == [["running decodes", "1\u20134", "5+"], ["batch", "1", "1"], ["code · band 0", "0", "0"]]
    assert cells[9:] == [
        ["code · band 7", "7", "3"],
        *([f"default · band {at}", str(at), str(at // 2)] for at in range(8)),
    ]
    shades = browser.run("return [...document.querySelectorAll('.heat td')].map((cell) => cell.style.background)")
    assert len(set(shades)) == 8  # the deeper, the darker
    store.remove_schedule("mapped", "gpu", lease)
    store.close()
    assert browser.complaints() == []


def test_match_rules_are_edited_in_a_form(browser: Browser, controller: Controller) -> None:
    assert controller.call("/admin/policies/ruled", "PUT", {"classes": {"code": {}}})[0] == 201
    show(browser, controller, "policies")
    browser.press("ruled")
    browser.sees("Policy of ruled, version 1")
    for _ in range(3):
        browser.press("Add rule")
    browser.fill("class of rule 1", "default")
    browser.fill("max_tokens_at_most of rule 1", "20")
    browser.fill("path of rule 1", "/v1/completions")
    browser.fill("has_tools of rule 2", "true")
    browser.fill("stream of rule 2", "false")
    browser.press_labelled("move rule 2 up")
    browser.press_labelled("remove rule 3")
    browser.sees("Would be version 2.")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees("Policy of ruled, version 2")
    found = controller.call("/admin/policies/ruled")[1]["policy"]["match"]
    assert [{name: value for name, value in rule.items() if value is not None} for rule in found] == [
        {"traffic_class": "code", "has_tools": True, "stream": False},
        {"traffic_class": "default", "max_tokens_at_most": 20, "path": "/v1/completions"},
    ]
    assert browser.complaints() == []


def test_a_second_operator_is_told_what_changed_and_keeps_both_changes(
    browser: Browser, controller: Controller
) -> None:
    rule = {"traffic_class": "default", "stream": True}
    assert controller.call("/admin/policies/both", "PUT", {"k_max": 5, "match": [rule]})[0] == 201
    show(browser, controller, "policies")
    browser.press("both")
    browser.sees("Policy of both, version 1")
    assert controller.call("/admin/policies/both", "PATCH", {"k_max": 4, "classes": {"chat": {}}})[0] == 200
    browser.fill("static k", "2")
    browser.sees("Since then --admin-token changed classes.chat from none to")
    browser.sees("k_max from 5 to 4")
    assert controller.call("/admin/policies/both")[1]["version"] == 2
    browser.press_labelled("remove rule 1")
    browser.press("Keep my changes on top of it")
    browser.sees("Policy of both, version 2")
    browser.sees("Would be version 3.")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees("Policy of both, version 3")
    found = controller.call("/admin/policies/both")[1]["policy"]
    assert (found["k_max"], found["static_k"], [*found["classes"]], found["match"]) == (4, 2, ["chat"], [])
    assert controller.call("/admin/policies/both", "PATCH", {"k_max": 3})[0] == 200
    browser.press("Go back to it")  # of a version that is not the newest one any more
    browser.sees("changed k_max from 4 to 3")
    browser.press("Drop my changes")
    browser.sees("Policy of both, version 4")
    assert browser.complaints() == []


def test_a_late_answer_does_not_undo_what_was_opened_and_edited_since(browser: Browser, controller: Controller) -> None:
    for name, k_max in (("late", 6), ("later", 5)):
        assert controller.call(f"/admin/policies/{name}", "PUT", {"k_max": k_max})[0] == 201
    show(browser, controller, "policies")
    browser.press("later")
    browser.sees("Policy of later, version 1")
    browser.run("""
        const real = fetch;
        window.held = [];
        window.fetch = async (url, ...rest) => {
          const answer = await real(url, ...rest);
          if (window.held && url.pathname === "/admin/policies") {
            await new Promise((done) => window.held.push(done));
          }
          return answer;
        };
    """)
    browser.press("late")
    browser.until("return window.held.length === 1")
    assert browser.run("return document.querySelector('.most').inert")  # what is edited now would be lost
    assert browser.value("k max") == "5"
    browser.run("window.first = window.held; window.held = null;")
    browser.press("later")
    browser.until("return document.querySelector('[aria-pressed=true]')?.textContent === 'later'")
    browser.sees("This is what holds now.")
    browser.fill("static k", "2")
    browser.run("window.first.forEach((done) => done())")
    browser.sees("Would be version 2.")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees("Policy of later, version 2")
    assert controller.call("/admin/policies/later")[1]["policy"]["static_k"] == 2
    assert controller.call("/admin/policies/late")[1]["version"] == 1
    assert browser.complaints() == []


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
        browser.sees(f"{MODEL} is frozen on the K of that time, by --admin-token")
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
    deadline = time.monotonic() + 10
    while controller.call("/admin/keys")[1]["keys"]:
        assert time.monotonic() < deadline


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


def test_many_pools_are_counted_and_found(browser: Browser) -> None:
    with running_controller() as many:
        store = RedisStore(many.redis.url)
        lease = Lease("test", int(store._redis.get(keys.FENCE)))
        rows = {"default": (KRange(1, 8, 3),)}
        for number in range(30):
            store.publish_schedule(Schedule(MODEL, f"pool-{number:02}", 1, time.time(), 60.0, 0.0, rows), lease)
        store.close()
        browser.open(f"{many.url}/console/style.css")
        browser.run("sessionStorage.setItem('token', arguments[0])", TOKEN)
        show(browser, many, "fleet")
        browser.sees("24 of 30 pools are shown.")
        browser.sees("pool-23")
        assert "pool-29" not in browser.text()
        browser.fill("Show only", "pool-2")
        browser.sees("10 of 30 pools are shown.")
        browser.press(f"{MODEL} · pool-29")
        browser.fill("Show only", "")
        browser.sees("24 of 30 pools are shown.")
        assert browser.run("return sessionStorage.getItem('pool')").endswith("pool-29")
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


@pytest.mark.parametrize("width", [400, 1800])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_fits_its_screen_and_shows_no_nan(
    browser: Browser, controller: Controller, engine: None, width: int, dark: bool
) -> None:
    browser.look(width, 900, dark=dark)
    for page in PAGES:
        show(browser, controller, page)
        assert browser.run("return document.documentElement.scrollWidth") <= width, page
        text = browser.text()
        assert "NaN" not in text, page
        assert "undefined" not in text, page
        assert browser.run(_CUT_OFF) == [], page
        unlabelled = browser.run(
            "return [...document.querySelectorAll('input, select, textarea')].filter((one) => one.checkVisibility() && "
            "!one.ariaLabel && !one.labels.length).map((one) => one.outerHTML)"
        )
        assert unlabelled == [], page
        if width == 1800 and page != "canaries":
            widest = browser.run(_RIGHT_EDGE)
            assert widest > 0.95 * width, page
    assert browser.complaints() == []


needs_axe = pytest.mark.skipif(axe.script() is None, reason="needs axe-playwright-python (its axe.min.js alone)")


@needs_axe
@pytest.mark.parametrize("width", [400, 1800])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_and_dialog_is_accessible(
    browser: Browser, controller: Controller, engine: None, width: int, dark: bool
) -> None:
    script = axe.script()
    assert script is not None
    full = {"classes": {"code": {"k_max": 3}}, "match": [{"traffic_class": "code", "stream": True}]}
    controller.call(f"/admin/policies/{MODEL}", "DELETE", If_Match="*")
    controller.call(f"/admin/canaries/{MODEL}", "DELETE")
    for place, method, body in (
        (f"policies/{MODEL}", "PUT", full),
        ("keys", "POST", {"traffic_class": "code"}),
        ("tokens", "POST", {"name": "day shift", "role": "viewer"}),
        (f"canaries/{MODEL}", "PUT", {"policy": {**full, "k_max": 2}}),
        (f"freezes/{MODEL}", "PUT", {"for_s": 600}),
        ("model-routes", "PATCH", {"routes": {"chat": {"split": [{"model": "big"}, {"model": "new"}]}}}),
    ):
        assert controller.call(f"/admin/{place}", method, body)[0] < 300
    browser.look(width, 900, dark=dark)
    browser.run("sessionStorage.setItem('policy', arguments[0])", MODEL)
    found = []
    for page in PAGES:
        show(browser, controller, page)
        if page == "fleet":
            browser.until("return document.querySelectorAll('.heat td').length > 1")
        elif page == "policies":
            browser.sees(f"Policy of {MODEL}, version")
            browser.fill("k max", "3")
            browser.sees("Would be version")
            browser.press("As JSON")
        found += [f"{page}: {line}" for line in axe.violations(browser, script)]
    browser.press("Freeze…")
    browser.until("return document.getElementById('confirm').open")
    found += [f"confirm: {line}" for line in axe.violations(browser, script)]
    browser.press("Leave it")
    browser.run("sessionStorage.clear()")
    browser.open("about:blank")
    browser.open(f"{controller.url}/")
    browser.until("return document.getElementById('ask').open")
    found += [f"ask: {line}" for line in axe.violations(browser, script)]
    assert controller.call(f"/admin/freezes/{MODEL}", "DELETE")[0] == 204
    assert found == []


def test_an_idle_fleet_without_engines_is_shown_without_faults(browser: Browser) -> None:
    with running_controller() as idle:
        browser.open(f"{idle.url}/console/style.css")
        browser.run("sessionStorage.setItem('token', arguments[0])", TOKEN)
        for page in PAGES:
            show(browser, idle, page)
            assert "NaN" not in browser.text()
        assert browser.complaints() == []


def test_the_console_loads_nothing_from_elsewhere_and_runs_no_inline_script(controller: Controller) -> None:
    for name in ("", *(f"console/{file.name}" for file in CONSOLE.iterdir())):
        status, text, headers = controller.call(f"/{name}", token=None)
        assert status == 200, name
        policy = headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert "https://" not in text
        assert "innerHTML =" not in text
    assert controller.call("/console/../access.py", token=None)[0] == 404
    assert controller.call("/console/none.js", token=None)[0] == 404

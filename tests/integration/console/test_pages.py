"""Pages of the console: what the fleet shows; each fits its screen, is accessible and loads nothing from elsewhere."""

import threading
import time
from pathlib import Path

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.questions import Answer, Prediction
from specpilot.policy.records import EngineRecord, Lease
from specpilot.policy.schedule import Guidance, KRange, Schedule
from specpilot.policy.store import Store
from tests.simulation.engine import MODEL
from tests.support import axe
from tests.support.browser import NEEDS_BROWSER, Browser
from tests.support.console_pages import PAGES, show
from tests.support.controller_program import TOKEN, Controller, running_controller
from tests.support.patience import PATIENCE_S

pytestmark = NEEDS_BROWSER
CONSOLE = Path(__file__).parents[3] / "controller" / "admin" / "console"
_RIGHT_EDGE = (
    "return Math.max(...[...document.querySelectorAll('section')].map((s) => s.getBoundingClientRect().right))"
)
_CUT_OFF = """
return [...document.querySelectorAll('.scroll:has(> table:not(.heat))')]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel);
"""


@pytest.fixture(scope="module")
def filled(controller: Controller) -> None:
    """One of everything that a page lists, except a freeze."""
    full = {"classes": {"code": {"k_max": 3}}, "match": [{"traffic_class": "code", "stream": True}]}
    for place, method, body in (
        (f"policies/{MODEL}", "PUT", full),
        ("keys", "POST", {"traffic_class": "code"}),
        ("tokens", "POST", {"name": "day shift", "role": "viewer"}),
        (f"canaries/{MODEL}", "PUT", {"policy": {**full, "k_max": 2}}),
        ("model-routes", "PATCH", {"routes": {"chat": {"split": [{"model": "big"}, {"model": "new"}]}}}),
    ):
        assert controller.call(f"/admin/{place}", method, body)[0] < 300


def test_what_engines_would_choose_is_mapped_by_load_and_a_silent_one_is_named(
    browser: Browser, controller: Controller
) -> None:
    store, is_over = Store(controller.redis.url, PATIENCE_S), threading.Event()
    rows = {"*": (KRange(1, 4, 6), KRange(5, 8, 2)), "code": (KRange(1, 8, 7),)}
    for name in ("answers", "silent"):
        url = f"http://127.0.0.1:1/{name}"
        record = EngineRecord(name, url, "mapped", "gpu", 7, 7, 8, "eagle3", "0.32.0", "0.1.0", 1.0, time.time())
        store.heartbeat(record, 600.0)

    def answer() -> None:
        prediction = Prediction({"code": 2.0}, 100.0, 0.01, {"code": 5.0})
        while not is_over.wait(0.02):
            for question in store.questions("mapped", "gpu"):
                known = {"in_force": prediction, "chosen": prediction, "static": prediction, "k_by_load": rows}
                store.put_answer(Answer(question.question_id, "answers", **known))  # type: ignore[arg-type]

    engine = threading.Thread(target=answer)
    engine.start()
    show(browser, controller, "fleet")
    browser.press("mapped · gpu")
    browser.until("return document.querySelectorAll('.heat tbody tr').length === 2")
    text = "(row) => [...row.children].map((cell) => cell.textContent)"
    cells = browser.run(f"return [...document.querySelectorAll('.heat tr')].map({text})")
    assert cells == [["running decodes", "1\u20134", "5+"], ["all requests", "6", "2"], ["code", "7", "7"]]
    shades = browser.run("return [...document.querySelectorAll('.heat td')].map((cell) => cell.style.background)")
    assert len(set(shades)) == 3  # the deeper, the darker
    browser.sees("silent: no answer within 1 s")
    is_over.set()
    engine.join(PATIENCE_S)
    for name in ("answers", "silent"):
        store.remove_engine(name)
    store.close()
    assert browser.complaints() == []


def test_many_pools_are_counted_and_found(browser: Browser) -> None:
    with running_controller() as many:
        store = Store(many.redis.url, PATIENCE_S)
        lease = Lease("test", int(store._redis.get(redis_keys.FENCE)))
        for number in range(30):
            store.publish_schedule(Schedule(MODEL, f"pool-{number:02}", 1, time.time(), Guidance()), lease)
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


@pytest.mark.parametrize("width", [400, 1300, 1800])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_fits_its_screen_and_shows_no_nan(
    browser: Browser, controller: Controller, engine: None, filled: None, width: int, dark: bool
) -> None:
    browser.look(width, 900, dark=dark)
    browser.run("sessionStorage.setItem('policy', arguments[0])", MODEL)
    for page in PAGES:
        show(browser, controller, page)
        if page == "policies":
            browser.sees(f"Policy of {MODEL}, version")
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
    browser: Browser, controller: Controller, engine: None, filled: None, width: int, dark: bool
) -> None:
    script = axe.script()
    assert script is not None
    assert controller.call(f"/admin/freezes/{MODEL}", "PUT", {"for_s": 600})[0] == 200
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

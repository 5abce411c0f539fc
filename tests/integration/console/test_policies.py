"""Policies and canaries in the console: made, tried, compared and rolled back, by several operators at once."""

from tests.simulation.engine import MODEL
from tests.support.browser import NEEDS_BROWSER, Browser
from tests.support.console_pages import show
from tests.support.controller_program import TOKEN, Controller, running_controller

pytestmark = NEEDS_BROWSER


def test_a_policy_is_made_watched_tried_rolled_back_and_found_in_the_audit(
    browser: Browser, controller: Controller, engine: None
) -> None:
    show(browser, controller, "fleet")
    browser.sees(f"{MODEL} · cpu")
    browser.until("return document.querySelectorAll('.heat td').length > 1")
    browser.sees("too few")  # windows of the control group
    browser.sees(" s ago")
    assert "its clock is" not in browser.text()
    browser.sees("What adaptive K gained over the static K, by day")
    browser.sees("choice, predicted by 1 of 1 engines.")
    heads = "all requests,default"
    browser.until(
        f"return [...document.querySelectorAll('.heat tbody th')].map((one) => one.textContent).join(',') === {heads!r}"
    )
    show(browser, controller, "policies")
    browser.sees(f"Policy of {MODEL}: none yet")
    browser.fill("static k", "1")
    browser.fill("control group ratio", "0.05")
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
    assert (found["static_k"], found["control_group_ratio"], found["classes"]["code"]["k_max"]) == (1, 0.05, 4)
    browser.fill("k max", "900")
    browser.sees("must be at most 64")
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
    browser.fill("tpot ms", "p95 30")
    for words in ('"weight": 4', '"p95": 30'):
        assert words in browser.value("The policy as JSON")
    browser.press("Write it")
    browser.press("Do it")
    browser.sees("Policy of written, version 2")
    found = controller.call("/admin/policies/written")[1]["policy"]
    assert (found["k_max"], found["classes"]["code"]["weight"], found["slo"]["tpot_ms"]) == (3, 4, {"p95": 30})
    browser.press_labelled("diff of version 2")  # until the page has the new versions there is none
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

"""The pages about the controller are under test: every setting, reason, metric and route is on them."""

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from specpilot.controller.admin.access import Access
from specpilot.controller.admin.audited import AuditTrail
from specpilot.controller.admin.routes import routes
from specpilot.controller.decision.reason import MEANING, Reason
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.settings import ControllerSettings
from specpilot.policy.clock import SystemClock
from specpilot.policy.codec import from_plain
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy
from tests.support.controller_store import MemoryStore

ROOT = Path(__file__).parents[3]
PAGES = {page.stem: page.read_text() for page in (ROOT / "docs" / "reference" / "controller").glob("*.md")}
PAGE = "".join(PAGES.values())


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row_with_its_meaning(reason: Reason) -> None:
    assert f"\n| `{reason.value}` | {MEANING[reason]} |" in PAGES["choosing-k"]


@pytest.mark.parametrize("name", ControllerSettings.model_fields)
def test_every_setting_has_a_row(name: str) -> None:
    assert f"\n| `--{name.replace('_', '-')}` |" in PAGE


def metrics() -> list[str]:
    families = ControllerMetrics().registry.collect()
    return [family.name + ("_total" if family.type == "counter" else "") for family in families]


@pytest.mark.parametrize("name", metrics())
def test_every_metric_has_a_row(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE


def test_no_row_names_a_metric_that_is_not_there() -> None:
    assert set(re.findall(r"\n\| `(specpilot_controller_\w+)` \|", PAGE)) == set(metrics())


def test_every_route_has_a_row() -> None:
    store, clock = MemoryStore(), SystemClock()
    router = routes(store, Access(store, clock), clock, AuditTrail(store, clock), on_change=lambda: None)
    for route in router.routes:
        path = route.path.replace(":path", "")
        for method in route.methods:
            assert re.search(rf"\n\| [^|]*`{method} {re.escape(path)}[`?]", PAGE), (method, path)


POLICIES = PAGES["policies"].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "kind"), [("field", Policy), ("field of a class", ClassPolicy), ("field of a rule", MatchRule)]
)
def test_every_field_of_a_policy_has_a_row(heading: str, kind: type) -> None:
    table = POLICIES.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    rows = {
        name: cells[1].strip()
        for cells in (line.strip("|").split("|") for line in table.splitlines()[2:])
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert set(rows) == {field.name for field in fields(kind)}
    for field in fields(kind):
        if isinstance(field.default, int | float) and field.default is not MISSING and kind is not MatchRule:
            assert str(field.default).lower().removesuffix(".0") in rows[field.name].split(",")[0], field.name


def test_the_policy_on_the_page_is_one() -> None:
    policy = from_plain(Policy, json.loads(POLICIES.partition("```json")[2].partition("```")[0]))
    assert policy.of_class("batch").pin == 0


def test_the_canary_on_the_page_fits_the_demo() -> None:
    canary = json.loads(PAGES["canaries"].partition("```json")[2].partition("```")[0])
    assert set(from_plain(Policy, canary["policy"]).classes) == {"chat", "code", "json"}

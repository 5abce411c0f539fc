"""The page about the controller is under test: every setting, reason, metric and route is on it."""

import re
from pathlib import Path

import pytest

from controller.access import Access
from controller.admin import routes
from controller.guard import Reason
from controller.metrics import ControllerMetrics
from controller.settings import ControllerSettings
from policy.clock import SystemClock
from tests.support.controller_store import MemoryStore

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "controller.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_row(reason: Reason) -> None:
    assert f"\n| `{reason.value}` |" in PAGE


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
    router = routes(MemoryStore(), Access(None), SystemClock(), lambda: None)
    for route in router.routes:
        path = route.path.replace(":path", "")
        for method in route.methods:
            assert re.search(rf"\n\| `{method} {re.escape(path)}[`?]", PAGE), (method, path)

"""The alerts: Prometheus takes the rules, each fires under its fault and is quiet without, each has its page."""

import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from specpilot.controller.metrics import ControllerMetrics
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.gateway.telemetry.metrics import GatewayMetrics, exposition_of
from specpilot.policy import engine_metrics
from specpilot.policy.bands import BAND_EDGES, BANDS
from specpilot.policy.store import StoreMemory
from tests.unit.test_docs import documented_metrics, metrics_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = (FOLDER / "rules" / "specpilot.yml").read_text()
TESTS = (FOLDER / "tests" / "specpilot.test.yml").read_text()
RUNBOOKS = ROOT / "docs" / "runbooks"
PROMTOOL = shutil.which("promtool")
ALERTS = re.findall(r"- alert: (\w+)", RULES)
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus)")


def promtool(*words: str, page: str | None = None) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], input=page, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    assert f"{len(ALERTS) + BANDS} rules found" in promtool("check", "rules", str(FOLDER / "rules" / "specpilot.yml"))


def test_each_band_counts_as_its_middle() -> None:
    found = re.findall(r"expr: vector\((\S+)\)\n\s+labels: {band: \"(\d+)\"}", RULES)
    middles = [(low + high) / 2 for low, high in pairwise((0.0, *BAND_EDGES, 1.0))]
    assert found == [(f"{middle:g}", str(band)) for band, middle in enumerate(middles)]


@needs_promtool
@pytest.mark.timeout(660)  # 14 s of a core of one's own
def test_each_alert_fires_under_its_fault_and_is_quiet_without() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(FOLDER / "tests" / "specpilot.test.yml"))


@needs_promtool
def test_prometheus_takes_the_configuration() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


def controllers_page() -> str:
    metrics = ControllerMetrics()
    metrics.show_version("m", "p", 3)
    metrics.show_tick(0.1, leads=True, store_up=True, ages_s=[("engine", 0.5)], memory=StoreMemory(900, 1000))
    return metrics.render().decode()


def gateways_page() -> str:
    metrics = GatewayMetrics()
    cell = metrics.cell("m", "code")
    cell.count(200, 0.5)
    cell.ttft.observe(0.1)
    metrics.count_upstream_error("connect")
    metrics.count_refusal("connections")
    return exposition_of(b"[%s]" % metrics.tally()).decode()


def engines_page() -> str:
    exporter = MetricsExporter("m")
    exporter.add(Evidence(tokens={("chat", 7): 5}, probes={"chat": 1}))  # type: ignore[arg-type]
    state = {engine_metrics.RUNNING_DECODES: {"chat": 3}, engine_metrics.ACTIVE_K: {"chat": 2.5}}
    state |= dict.fromkeys((engine_metrics.SCHEDULE_VERSION, engine_metrics.STATIC_BREAKS_SLO), 1.0)
    exporter.show(state)
    return exporter.text()


@needs_promtool
@pytest.mark.parametrize("page", [controllers_page, gateways_page, engines_page])
def test_prometheus_finds_nothing_wrong_with_the_metrics(page: Callable[[], str]) -> None:
    text = page()
    assert len(re.findall(r"^# TYPE ", text, re.MULTILINE)) > 2
    promtool("check", "metrics", page=text)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_tested_both_ways_and_has_its_page(alert: str) -> None:
    assert f"- name: {alert} fires\n" in TESTS
    assert f"- name: {alert} is quiet\n" in TESTS
    rule = RULES.split(f"- alert: {alert}\n")[1].split("- alert:")[0]
    runbook = ROOT / re.findall(r"runbook: (\S+)", rule)[0]
    page = runbook.read_text()
    assert f"Alert `{alert}`, " in page
    for heading in ("## What it means", "## What to look at", "## What to do"):
        assert heading in page
    assert f"[`{alert}`]({runbook.name})" in (RUNBOOKS / "README.md").read_text()


def test_every_rule_of_the_folder_is_in_the_one_file() -> None:
    """An alert in another file would lack its page and its tests."""
    assert [file.name for file in (FOLDER / "rules").iterdir()] == ["specpilot.yml"]


def test_every_metric_that_an_alert_or_a_runbook_names_exists() -> None:
    pages = [page.read_text() for page in RUNBOOKS.glob("*.md")]
    named = {name for text in (RULES, *pages) for name in metrics_of(text)}
    assert len(named) > 15
    assert named <= set(documented_metrics())


def test_every_page_belongs_to_an_alert() -> None:
    named = set(re.findall(r"runbook: docs/runbooks/(\S+)", RULES))
    assert {page.name for page in RUNBOOKS.glob("*.md")} == {*named, "README.md"}

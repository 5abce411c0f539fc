"""What Grafana loads at its start: the folders are where the dashboards are, and each data source is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
COMPOSE = DEPLOY / "compose"
GRAFANA: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["grafana"]
MOUNTS = {target: COMPOSE / source for source, target, *_ in (item.split(":") for item in GRAFANA["volumes"])}
DASHBOARDS = [*COMPOSE.glob("grafana/dashboards.yaml"), *DEPLOY.glob("grafana/provisioning/dashboards/*.yml")]
SOURCES = [*COMPOSE.glob("grafana/datasources.yaml"), *DEPLOY.glob("grafana/provisioning/datasources/*.yml")]
BOARD = json.loads((DEPLOY / "grafana" / "specpilot.json").read_text())


def described(file: Path) -> str:
    return str(file.relative_to(DEPLOY))


def test_both_kinds_are_there_for_compose_and_for_others() -> None:
    assert (len(DASHBOARDS), len(SOURCES)) == (2, 2)
    mounted = {file.resolve() for target, file in MOUNTS.items() if target.startswith("/etc/grafana/provisioning/")}
    assert mounted == {file.resolve() for file in (*DASHBOARDS, *SOURCES) if file.is_relative_to(COMPOSE)}


@pytest.mark.parametrize("file", DASHBOARDS, ids=described)
def test_the_folder_that_is_loaded_is_the_one_with_the_dashboard(file: Path) -> None:
    [provider] = yaml.safe_load(file.read_text())["providers"]
    folder = MOUNTS[provider["options"]["path"]]
    assert [found.name for found in folder.glob("*.json")] == ["specpilot.json"]
    assert provider["type"] == "file"


@pytest.mark.parametrize("file", SOURCES, ids=described)
def test_the_data_source_is_one_that_the_dashboard_takes(file: Path) -> None:
    [source] = yaml.safe_load(file.read_text())["datasources"]
    [variable] = [item for item in BOARD["templating"]["list"] if item["type"] == "datasource"]
    assert source["type"] == variable["query"] == "prometheus"
    assert source["isDefault"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("file", SOURCES, ids=described)
def test_the_data_source_states_the_longest_scrape_interval(file: Path) -> None:
    [source] = yaml.safe_load(file.read_text())["datasources"]
    scraping = COMPOSE / "prometheus.yml" if file.is_relative_to(COMPOSE) else DEPLOY / "prometheus" / "prometheus.yml"
    plain = yaml.safe_load(scraping.read_text())
    jobs = [plain.get("global", {}), *plain["scrape_configs"]]
    stated = {int(job["scrape_interval"].removesuffix("s")) for job in jobs if "scrape_interval" in job}
    assert source["jsonData"]["timeInterval"] == f"{max(stated)}s"


def test_every_query_of_the_dashboard_asks_the_chosen_data_source() -> None:
    [variable] = [item for item in BOARD["templating"]["list"] if item["type"] == "datasource"]
    chosen = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    asking = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
    asking += BOARD["annotations"]["list"]
    asking += [item for item in BOARD["templating"]["list"] if item["type"] == "query"]
    assert len(asking) > 30
    for item in asking:
        assert item["datasource"] == chosen, item
        assert all(target.get("datasource", chosen) == chosen for target in item.get("targets", ()))


def _queries() -> list[str]:
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    return panels + [item["expr"] for item in BOARD["annotations"]["list"] if "expr" in item]


@pytest.mark.parametrize("query", _queries())
def test_a_query_has_samples_at_any_interval_of_scraping(query: str) -> None:
    assert re.findall(r"\[(?!\$__rate_interval\])[^\]]*\]", query) == []


def test_a_rule_has_four_samples_at_the_longest_interval_of_scraping_that_is_stated() -> None:
    text = (DEPLOY / "prometheus" / "rules" / "specpilot.yml").read_text()
    windows = re.findall(r"\[(\d+)([smhd])\]", text)
    assert windows
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    [longest_s] = re.findall(r"Scrape at least every (\d+) s", text)
    assert min(int(number) * seconds[unit] for number, unit in windows) >= 4 * int(longest_s)
    page = (DEPLOY.parent / "docs" / "reference" / "controller" / "settings.md").read_text()
    assert f"Scrape at least every {longest_s} s" in " ".join(page.split())

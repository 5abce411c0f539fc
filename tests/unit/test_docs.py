"""What the pages say exists, exists; and what exists is on the pages."""

import json
import re
from pathlib import Path

import pytest

from engine_adapter.settings import PREFIX, AdapterSettings
from policy import engine_metrics
from specpilot.cli import COMMANDS
from specpilot.up import UpSettings

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ENGINE_PAGE = (ROOT / "docs" / "engine.md").read_text()
PAGES = [README, (ROOT / "CONTRIBUTING.md").read_text(), *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page, re.MULTILINE)}
    assert named >= {"up", "test", "demo"}
    assert named <= targets


def test_every_command_that_a_page_names_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)specpilot ([a-z]+)", page, re.MULTILINE)}
    assert named >= {"engine", "gateway", "controller"}
    assert named <= set(COMMANDS)


def test_every_flag_of_up_that_the_readme_names_exists() -> None:
    paragraph = README.split("Useful flags")[1].split("\n\n")[0]
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", paragraph)}
    assert len(flags) > 5
    assert flags <= set(UpSettings.model_fields)


def test_every_folder_of_the_layout_exists() -> None:
    folders = re.findall(r"^\| `([a-z_]+)/` \|", README, re.MULTILINE)
    assert len(folders) > 6
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_every_link_of_a_page_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("field", AdapterSettings.model_fields)
def test_every_setting_of_the_adapter_is_documented(field: str) -> None:
    assert f"`{PREFIX}{field.upper()}`" in ENGINE_PAGE


def test_every_engine_metric_is_documented_and_the_other_way_round() -> None:
    exported = {
        value
        for name, value in vars(engine_metrics).items()
        if isinstance(value, str) and value.startswith(engine_metrics.PREFIX) and name != "PREFIX"
    }
    documented = set(re.findall(r"`(specpilot_engine_[a-z_]+)`", ENGINE_PAGE))
    assert exported == documented


def test_every_query_of_the_dashboard_names_a_documented_metric() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "specpilot.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [item["query"]["query"] for item in board["templating"]["list"] if item["type"] == "query"]
    named = {
        re.sub(r"_(bucket|sum|count)$", "", name) for query in queries for name in re.findall(r"specpilot_\w+", query)
    }
    documented = {name for page in PAGES for name in re.findall(r"^\| `(specpilot_\w+)`", page, re.MULTILINE)}
    assert len(named) > 15
    assert named <= documented

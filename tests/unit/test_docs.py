"""What the pages say exists, exists; and what exists is on the pages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.__main__ import MEASUREMENTS
from specpilot.cli import COMMANDS
from specpilot.engine_adapter.settings import PREFIX, AdapterSettings
from specpilot.policy import engine_metrics

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ENGINE_PAGE = (ROOT / "docs" / "reference" / "engine.md").read_text()
PAGES = [README, (ROOT / "CONTRIBUTING.md").read_text(), *(page.read_text() for page in (ROOT / "docs").rglob("*.md"))]


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {f"bench-{name}" for name in MEASUREMENTS}
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page, re.MULTILINE)}
    assert named >= {"up", "test", "demo"}
    assert named <= targets


def test_every_command_that_a_page_names_exists() -> None:
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)specpilot ([a-z]+)", page, re.MULTILINE)}
    assert named >= {"engine", "gateway", "controller"}
    assert named <= set(COMMANDS)


def test_every_folder_of_the_layout_exists() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    folders = re.findall(r"^\| `([a-z_]+)/` \|", contributing, re.MULTILINE)
    assert len(folders) > 6
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_every_link_of_a_page_leads_somewhere() -> None:
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("folder", ["get-started", "how-to"])
def test_every_page_with_commands_says_at_which_commit_it_was_verified(folder: str) -> None:
    for page in (ROOT / "docs" / folder).glob("*.md"):
        if page.name != "README.md":
            form = r"---\nlast verified: [0-9a-f]{7,40} \(\d{4}-\d\d-\d\d\), by .+\n---\n"
            assert re.match(form, page.read_text()), page.name


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


BOARD = json.loads((ROOT / "deploy" / "grafana" / "specpilot.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
GPU_METRICS = {f"DCGM_FI_DEV_{name}" for name in ("GPU_UTIL", "FB_USED", "FB_FREE")}


def documented_metrics() -> dict[str, set[str]]:
    """Each metric of a table of some page, and its labels."""
    found = {}
    for page in PAGES:
        for name, labels in re.findall(r"^\| `(specpilot_\w+)` \|([^|]*)\|", page, re.MULTILINE):
            found[name] = set(re.findall(r"[a-z_]+", labels.partition(":")[2] or labels))
            if name.startswith("specpilot_engine_"):
                found[name] |= {"model_name", "engine"}
    return found


def metrics_of(expression: str) -> set[str]:
    names = re.findall(r"specpilot_\w+", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def test_every_metric_that_the_dashboard_shows_is_documented() -> None:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    queries += [item["query"]["query"] for item in BOARD["templating"]["list"] if item["type"] == "query"]
    named = {name for query in queries for name in metrics_of(query)}
    assert len(named) > 30
    assert named <= set(documented_metrics())


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_query_of_the_dashboard_names_labels_that_its_metric_has(panel: dict[str, Any]) -> None:
    documented = documented_metrics()
    for target in panel["targets"]:
        query = target["expr"]
        for name, selected in re.findall(r"(specpilot_\w+?)(?:_bucket)?\b(?:{([^}]*)})?", query):
            assert set(re.findall(r"(\w+)=~?\"", selected)) <= documented[name]
        if "specpilot_" not in query:
            assert set(re.findall(r"[A-Z]\w+_\w+", query)) <= GPU_METRICS
            continue
        first = documented[re.sub(r"_bucket$", "", re.findall(r"specpilot_\w+", query)[0])]
        grouped = [re.split(r", *", names) for names in re.findall(r" by \(([^)]*)\)", query)]
        assert {label for names in grouped for label in names} <= first | {"le"}
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert shown <= (set(grouped[0]) if grouped else first | {"instance"})


def test_of_several_controllers_the_dashboard_shows_the_one_that_leads() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            if re.search(r"specpilot_controller_\w+{model_name", target["expr"]) and panel["title"] != "Versions":
                assert "and on (instance) (specpilot_controller_lease_held == 1)" in target["expr"], panel["title"]


def test_each_panel_of_the_dashboard_has_an_id_of_its_own_and_says_what_it_shows() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["description"] for panel in PANELS)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(page.name for page in folder.glob("0*.md"))

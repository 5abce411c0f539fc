"""Examples on pages are what the product reads: policies, canaries, client programs."""

import ast
import json
import re
from pathlib import Path

import pytest
import yaml

from specpilot.policy.canary import Canary
from specpilot.policy.codec import from_plain
from specpilot.policy.model_policy import Policy

DOCS = Path(__file__).resolve().parents[2] / "docs"
JSON_BLOCK = re.compile(r"^```json\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEREDOC = re.compile(r"<<'(?:EOF|JSON)'\n(\{.*?\})\n(?:EOF|JSON)$", re.DOTALL | re.MULTILINE)
PAGES = [page for folder in ("how-to", "get-started") for page in sorted((DOCS / folder).glob("*.md"))]


def documents(page: Path) -> list[dict[str, object]]:
    text = page.read_text()
    found = [json.loads(block) for pattern in (JSON_BLOCK, HEREDOC) for block in pattern.findall(text)]
    return [item for item in found if isinstance(item, dict)]


EXAMPLES = [
    pytest.param(document, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, document in enumerate(documents(page))
    if "model" in document or "policy" in document
]


@pytest.mark.parametrize("document", EXAMPLES)
def test_every_policy_and_canary_of_a_page_is_valid(document: dict[str, object]) -> None:
    if "policy" in document:
        assert from_plain(Canary, document).policy.model
    else:
        assert from_plain(Policy, document).model


def test_pages_show_policies() -> None:
    assert len(EXAMPLES) >= 10


def test_the_python_of_every_page_is_python() -> None:
    found = [
        block
        for page in DOCS.rglob("*.md")
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    assert len(found) >= 2
    for block in found:
        ast.parse(block)


@pytest.mark.parametrize(
    "form", sorted((DOCS.parent / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda file: file.stem
)
def test_an_issue_form_has_what_its_reader_needs(form: Path) -> None:
    document = yaml.safe_load(form.read_text())
    if form.stem == "config":
        assert set(document) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(document)
    for field in document["body"]:
        assert field["type"] in ("markdown", "textarea", "input")
        assert field["attributes"].get("label") or field["attributes"].get("value")

"""The documentation site builds without a warning, loads nothing from elsewhere, and its search finds each section."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs mkdocs-material: pip install -e '.[docs]'")
pytestmark = pytest.mark.timeout(660)  # the site is built in a quarter of a minute of a core of one's own

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("get-started", "concepts", "how-to", "operations", "reference", "architecture", "measurements")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a broken link, anchor or page without a place in `nav` is a failure."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        tags = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text())
        assert [tag for tag in tags if re.search(r"(?:src|href)=[\"']?(?:https?:)?//", tag)] == [], page.name
        assert 'class="mermaid"' not in page.read_text(), f"{page.name}: the theme fetches what draws this"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()), style.name


def test_the_search_index_has_every_section(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    for section in SECTIONS:
        assert any(entry["location"].startswith(f"{section}/") and entry["text"] for entry in entries), section
    assert any("minimum_gain_ratio" in entry["text"] for entry in entries)

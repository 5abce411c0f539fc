"""Hooks of MkDocs.

An entry of `nav` that names a folder, as `runbooks/`, stands for all its pages, README first.
A page shows the `last verified` of its front matter as its last line.
"""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Return the configuration with every folder of `nav` replaced by its pages."""
    config["nav"] = _expanded(config["nav"], Path(config["docs_dir"]))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with the commit that it was last verified at, where its front matter names one."""
    verified = page.meta.get("last verified")
    return f"{markdown}\n\n*Last verified at commit {verified}.*\n" if verified else markdown


def _expanded(entry: Any, root: Path) -> Any:
    if isinstance(entry, list):
        return [_expanded(item, root) for item in entry]
    if isinstance(entry, dict):
        return {title: _expanded(value, root) for title, value in entry.items()}
    if not entry.endswith("/"):
        return entry
    pages = sorted((root / entry).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return [f"{entry}{page.name}" for page in pages]

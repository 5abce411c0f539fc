"""axe-core in a browser's page: what of it people who see, hear or point otherwise cannot use."""

from importlib.util import find_spec
from pathlib import Path

from tests.support.browser import Browser

_RUN = """
const { violations } = await axe.run(document, { resultTypes: ["violations"] });
const why = (node) => [...node.any, ...node.all, ...node.none].map((check) => check.message).join("; ");
return violations.flatMap((rule) => rule.nodes.map((node) =>
  `${rule.id} (${rule.impact}): ${node.target.join(" ")}: ${why(node)}`));
"""


def script() -> str | None:
    """Return axe-core as the package `axe-playwright-python` carries it, which is not imported; `None` without it."""
    spec = find_spec("axe_playwright_python")
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8") if spec and spec.origin else None


def violations(browser: Browser, axe: str) -> list[str]:
    """Return a line for each element of the page that breaks one of axe's rules."""
    if not browser.run("return 'axe' in window"):
        browser.run(axe + "\nwindow.axe = axe;")
    found: list[str] = browser.run(f"return (async () => {{{_RUN}}})()")
    return found

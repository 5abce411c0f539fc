"""Every flag of a `specpilot` command that a page shows is a flag of that command."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SETTINGS = {
    "up": "specpilot.up_settings:UpSettings",
    "gateway": "specpilot.gateway.settings:GatewaySettings",
    "controller": "specpilot.controller.settings:ControllerSettings",
    "policy": "specpilot.controller.cli.policy:PolicySettings",
    "freeze": "specpilot.controller.cli.freeze:FreezeSettings",
    "audit": "specpilot.controller.cli.audit:AuditSettings",
    "token": "specpilot.controller.cli.admin_token:TokenSettings",
    "key": "specpilot.controller.cli.client_key:KeySettings",
    "explain": "specpilot.controller.cli.explain:ExplainSettings",
    "export": "specpilot.controller.cli.export:ExportSettings",
    "bench sweep": "specpilot.bench.sweep.command:SweepSettings",
    "bench demo": "specpilot.bench.demo.command:DemoSettings",
}


def flags_of(place: str) -> set[str]:
    """The flags of a command, from its settings: `engine` is left out, as it passes on what it does not know."""
    module, name = place.split(":")
    kind: type[BaseSettings] = getattr(import_module(module), name)
    fields = kind.model_fields.items()
    names = {field.alias or name for name, field in fields} | {name for name, field in fields if not field.alias}
    found = {name.replace("_", "-") for name in names}
    return found | {f"no-{name}" for name in found} | {"help"}


def shown(command: str) -> set[str]:
    """The flags that pages give to a command, continued lines and quoted values taken into account."""
    patterns = [rf"specpilot {command} ((?:[^\n`|]|\\\n)*)"]
    if command == "up":
        patterns.append(r'make up ARGS="([^"]*)"')
    found = set()
    for page in PAGES:
        for words in (words for pattern in patterns for words in re.findall(pattern, page.read_text())):
            plain = re.sub(r"\"[^\"]*\"|'[^']*'", "", words.split("#")[0])
            found |= set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", plain))
    return found


@pytest.mark.parametrize("command", SETTINGS)
def test_every_flag_that_a_page_shows_exists(command: str) -> None:
    assert shown(command) - flags_of(SETTINGS[command]) == set()


def test_pages_show_flags() -> None:
    assert {"redis-url", "admin-token"} <= shown("controller")
    assert {"hold", "for"} <= shown("freeze")
    assert {"admin-port", "engines", "k", "mode", "port"} <= shown("up")

"""What the pages on deploying say exists, exists."""

import re
from pathlib import Path

import pytest
import yaml

from specpilot import sagemaker
from specpilot.policy.settings import load
from specpilot.up_settings import PROGRAM, UpSettings

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "get-started").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(deploy/[\w./-]+)`", page.read_text())
    assert all((ROOT / name).exists() for name in named), named


def test_every_setting_of_up_that_a_page_or_unit_names_exists() -> None:
    texts = [page.read_text() for page in PAGES] + [(ROOT / "deploy/systemd/specpilot.service").read_text()]
    texts += [path.read_text() for path in (ROOT / "deploy" / "images").iterdir()]
    variables = {name for text in texts for name in re.findall(r"SPECPILOT_UP_([A-Z_]+[A-Z])\b", text)}
    assert variables >= {"MODEL", "POLICY", "STATE_DIR"}
    assert {name.lower() for name in variables} <= set(UpSettings.model_fields)
    for text in texts:
        for command in re.findall(r"specpilot up ((?:--?[\w-]+[^`\n\\]*(?:\\\n)?)+)", text):
            flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", command)}
            assert flags <= set(UpSettings.model_fields), command


def test_every_variable_of_an_endpoint_is_documented() -> None:
    page = (ROOT / "docs" / "get-started" / "one-machine.md").read_text()
    for name in (*sagemaker.SETTINGS, *sagemaker.REFUSED):
        assert f"`{sagemaker.PREFIX}{name}`" in page
    for name in (sagemaker.PORT, sagemaker.PORTS, sagemaker.GPUS, f"{sagemaker.MULTI_MODEL}=true"):
        assert f"`{name}`" in page


def test_the_command_of_the_first_example_is_read() -> None:
    page = (ROOT / "docs" / "get-started" / "one-machine.md").read_text()
    [command] = re.findall(r"specpilot (up --unattended .*?)\n```", page, re.DOTALL)
    settings = load(UpSettings, PROGRAM, command.replace("\\\n", " ").split()[1:])
    assert settings.unattended
    assert settings.host == "0.0.0.0"


def test_every_configuration_of_another_gateway_is_yaml() -> None:
    page = (ROOT / "docs" / "get-started" / "other-gateways.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    assert all(yaml.safe_load(block) for block in blocks)

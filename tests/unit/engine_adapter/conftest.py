"""Published configurations in the current folder, for `specpilot check`."""

import json
from pathlib import Path

import pytest

from tests.support.published_configs import CONFIGS


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for each published configuration, in the current one."""
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "SPECPILOT_ENGINE_ANY_VLLM"):
        monkeypatch.delenv(name, raising=False)
    for name, config in CONFIGS.items():
        file = tmp_path / name / ("params.json" if "dim" in config else "config.json")
        file.parent.mkdir()
        file.write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)

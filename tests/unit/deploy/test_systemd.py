"""The unit: systemd itself finds nothing wrong with it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "specpilot.service"
ANALYZE = shutil.which("systemd-analyze")


def said_of(text: str, folder: Path) -> list[str]:
    """What systemd says of a unit. Its program, which is not installed here, is replaced."""
    path = folder / UNIT.name
    path.write_text(text.replace("/opt/specpilot/bin/specpilot", shutil.which("true") or "/bin/true"))
    command = [str(ANALYZE), "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return [line for line in done.stderr.splitlines() if UNIT.name in line]


def test_the_start_may_take_as_long_as_redis_and_then_the_engine() -> None:
    text = UNIT.read_text()
    [timeout], [within] = re.findall(r"TimeoutStartSec=(\d+)", text), re.findall(r"READY_WITHIN_S=(\d+)", text)
    assert int(timeout) > 2 * int(within)


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze (Debian: systemd)")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert said_of(text.replace("Restart=on-failure", "Restart=sometimes"), tmp_path) != []  # it does look
    assert said_of(text, tmp_path) == []

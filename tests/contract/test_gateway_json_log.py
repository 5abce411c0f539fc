"""With `--log-format json` every line on standard error is one JSON object, whoever writes it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import call, request
from tests.support.gateway_server import eventually
from tests.support.patience import PATIENCE_S
from tests.support.stack import free_port


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(item, dict) for item in found)
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_every_line_from_the_start_to_the_end(start_program: StartProgram, workers: str) -> None:
    redis = ("--redis-url", f"redis://127.0.0.1:{free_port()}")
    flags = ("--engine", "http://127.0.0.1:9", "--log-format", "json", *redis, "--drain-timeout-s", "1")
    program = await start_program(*flags, "--workers", workers)  # the port is read out of the line, which is JSON
    await eventually(lambda: any("does not list its models" in line for line in program.errors))
    await call(program.port, request())
    await eventually(lambda: any("request_id" in line for line in program.errors))
    told = len(program.errors)
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: len(program.errors) > told)
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    lines = objects("".join(program.errors))
    messages = [line for line in lines if "message" in line]
    assert {"at", "level", "logger", "message"} <= set.intersection(*(set(line) for line in messages))
    assert any("listening on" in line["message"] for line in messages)
    assert any(line["level"] == "warning" for line in messages)
    assert any("request_id" in line for line in lines)
    if workers == "2":
        assert {line["worker"] for line in messages if "worker" in line} >= {1}
    else:
        assert any("SIGHUP" in line["message"] for line in messages)


@pytest.mark.parametrize(
    "form", [["--log-format", "json"], ["--log-format=json"], []], ids=["apart", "one", "variable"]
)
@pytest.mark.parametrize(
    "wrong",
    [
        ["--engine", "nowhere"],
        ["--unknown", "1"],
        ["--engine", "http://x", "--api-keys-file", "/does/not/exist"],
        ["--engine", "http://x", "--host", "not an address"],
        ["--engine", "http://x", "--host", "not an address", "--workers", "2"],
        [],
    ],
)
def test_a_start_that_cannot_work(wrong: list[str], form: list[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
    if not form:
        environment["SPECPILOT_GATEWAY_LOG_FORMAT"] = "json"
    done = subprocess.run(
        [sys.executable, "-m", "specpilot.gateway", *wrong, *form],
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    lines = objects(done.stderr)
    assert lines
    assert all(line["level"] == "critical" for line in lines)


def test_warnings_and_exceptions_of_the_interpreter(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import threading, warnings\n"
        "from specpilot.policy import json_log\n"
        "json_log.use(where='here')\n"
        "warnings.warn('careful')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise ValueError('two\\nlines')\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    lines = objects(done.stderr)
    assert [line["level"] for line in lines] == ["warning", "critical", "critical"]
    assert "careful" in lines[0]["message"]
    assert "ZeroDivisionError" in lines[1]["exception"]
    assert "two\nlines" in lines[2]["exception"]
    assert {line["where"] for line in lines} == {"here"}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_finalizers_arguments_that_do_not_fit_and_text_of_any_script(tmp_path: Path, encoding: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import logging\n"
        "from specpilot.policy import json_log\n"
        "json_log.use()\n"
        "class Broken:\n"
        "    def __del__(self):\n"
        "        raise ValueError('in a finalizer')\n"
        "    def __repr__(self):\n"
        "        raise RuntimeError('no text')\n"
        "broken = Broken()\n"
        "logging.warning('%s', broken)\n"
        "logging.warning('%c', 0x110000)\n"
        "del broken\n"
        "logging.warning('%d of %s', 'x')\n"
        "logging.warning('model %s', '\N{LLAMA} \\udcff \u00e9')\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, timeout=PATIENCE_S, check=False
    )
    lines = objects(done.stderr.decode("utf-8"))
    assert [line["level"] for line in lines] == ["warning", "warning", "error", "warning", "warning"]
    assert lines[0]["message"] == "%s <tuple>"
    assert lines[1]["message"] == "%c (1114112,)"
    assert "in a finalizer" in lines[2]["exception"]
    assert "%d of %s" in lines[3]["message"]
    assert lines[4]["message"] == "model \N{LLAMA} \udcff \u00e9"

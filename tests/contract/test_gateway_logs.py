"""The access log, and the request id that leads to its lines; with `--log-format json` every line is one object."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import StartGateway, StartProgram
from tests.support.commands import run
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    event,
    usage_event,
)
from tests.support.stack import free_port


async def line_of(gateway: GatewayThread, request_id: str) -> dict[str, Any]:
    (line,) = await eventually(lambda: [item for item in gateway.log_lines() if item["request_id"] == request_id])
    found: dict[str, Any] = line
    return found


async def test_a_line_says_everything_of_a_stream_but_what_was_said(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [
        SSE_HEAD,
        *(chunk(frame) for frame in (event("answer-text"), usage_event(7, 2.5), DONE)),
        LAST_CHUNK,
    ]
    gateway = await start_gateway(engine, keys=[{"key_id": "ci", "key": "sk-hush", "traffic_class": "batch"}])
    body = {**STREAM, "messages": [{"role": "user", "content": "prompt-text"}]}
    answer = await call(gateway.port, request(body, headers="authorization: Bearer sk-hush\r\n"))
    line = await line_of(gateway, answer.headers["x-request-id"])
    for name in ("at", "duration_ms", "ttft_ms"):
        assert line.pop(name) > 0
    assert line == {
        "request_id": answer.headers["x-request-id"],
        "method": "POST",
        "path": "/v1/chat/completions",
        "model": "tiny",
        "requested_model": None,
        "traffic_class": "batch",
        "key_id": "ci",
        "client": "127.0.0.1",
        "engine": answer.headers["x-specpilot-engine"],
        "engines_tried": 1,
        "queue_ms": 0.0,
        "status": 200,
        "error": None,
        "phase": "response",
        "input_tokens": 3,
        "output_tokens": 7,
        "acceptance_length": 2.5,
        "trace_id": None,
    }
    for secret in (b"sk-hush", b"prompt-text", b"answer-text"):
        assert secret not in gateway.log.getvalue()


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "bad_request"),
        (b"POST /v1/completions HTTP/1.1\r\nx: " + b"x" * 70_000, 431, "head_too_large"),
    ],
)
async def test_what_cannot_be_read_has_an_id_a_line_and_a_count(
    gateway: GatewayThread, data: bytes, status: int, error: str
) -> None:
    answer = await call(gateway.port, data)
    assert (answer.status, answer.code) == (status, error)
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"], line["phase"]) == (status, error, "request")
    assert (line["method"], line["path"], line["model"]) == ("", "", None)
    assert gateway.context.metrics.cells["other", "other"].requests == {status: 1}


@pytest.mark.parametrize(
    ("data", "settings", "error"),
    [
        (request(), {"require_api_key": True}, "invalid_api_key"),
        (request({"model": "none"}), {}, "model_not_found"),
        (request(method="PUT"), {}, "method_not_allowed"),
        (request(b"x" * 2000), {"max_body_bytes": 1024}, "body_too_large"),
        (request(b"[]"), {}, "invalid_json"),
    ],
)
async def test_what_is_refused_has_an_id_and_a_line(
    engine: ScriptedEngine, start_gateway: StartGateway, data: bytes, settings: dict[str, Any], error: str
) -> None:
    gateway = await start_gateway(engine, **settings)
    answer = await call(gateway.port, data)
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"]) == (answer.status, error)
    assert line["engine"] is None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([SSE_HEAD, chunk(event("a")), 0.05, CLOSE], "stream_broken"),
        ([SSE_HEAD, chunk(b'data: {"error": {"message": "out of memory"}}\n\n'), LAST_CHUNK], "error_event"),
    ],
)
async def test_a_stream_that_went_wrong_after_its_200_says_so(
    engine: ScriptedEngine, gateway: GatewayThread, script: list[Any], error: str
) -> None:
    engine.script = script
    answer = await call(gateway.port, request(STREAM))
    line = await line_of(gateway, answer.headers["x-request-id"])
    assert (line["status"], line["error"]) == (200, error)


@pytest.mark.parametrize("request_id", ['"', "\\", 'a"b\\c', "{}"])
async def test_an_identifier_of_a_client_is_written_as_json(gateway: GatewayThread, request_id: str) -> None:
    await call(gateway.port, request(headers=f"x-request-id: {request_id}\r\n"))
    assert (await line_of(gateway, request_id))["status"] == 200


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
def test_a_start_that_cannot_work(wrong: list[str], form: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    if not form:
        monkeypatch.setenv("SPECPILOT_GATEWAY_LOG_FORMAT", "json")
    done = run("gateway", *wrong, *form)
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

"""The program: how it starts, how it refuses to, how it ends."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram
from tests.support.scripted_engine import LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event

Start = Callable[..., GatewayProgram]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[GatewayProgram] = []

    def begin(*arguments: str) -> GatewayProgram:
        running.append(GatewayProgram(arguments))
        return running[-1]

    yield begin
    for program in running:
        program.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], ["--redis-url:", "--engine"]),
        (["--engine", "localhost:8100"], ["--engine:", "http://"]),
        (["--engine", "http://"], ["--engine:", "http://"]),
        (["--engine", "http://x:99999"], ["--engine:", "http://"]),
        (["--redis-url", "http://x"], ["--redis-url:", "redis://"]),
        (["--redis-url", "redis://127.0.0.1:1"], ["--redis-url:", "--engine"]),
        (["--engine", "http://x", "--port", "hundred"], ["--port:"]),
        (["--engine", "http://x", "--max-body-bytes", "1"], ["--max-body-bytes:"]),
        (["--engine", "http://x", "--engine-capacity", "0"], ["--engine-capacity:"]),
        (["--engine", "http://x", "--host", "not an address"], ["--host:"]),
        (["--engine", "http://x", "--api-keys-file", "/does/not/exist"], ["--api-keys-file:", "check the path"]),
        (["--engine", "http://x", "--unknown", "1"], ["--unknown"]),
    ],
)
def test_a_start_that_cannot_work_says_why(arguments: list[str], said: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specpilot.gateway", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(text in done.stderr for text in said), done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "must be a JSON list"),
        ('[{"key_id":"a"}]', "[0].key"),
        ('[{"key_id":"a","key":"k","traffic_class":"No Class"},{"key":7}]', "not a class name"),
        ('[{"key_id":"a","key":"sk-secret","color":1}]', "[0].color"),
        ('[{"key_id":"a","key":"k","requests_per_minute":0}]', "[0]: requests_per_minute is 0; it must be between 1"),
        ('[{"key_id":"a","key":"k","tokens_per_minute":"many"}]', "[0].tokens_per_minute"),
    ],
)
def test_a_bad_keys_file_is_named_with_its_faults(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    arguments = [sys.executable, "-m", "specpilot.gateway", "--engine", "http://x", "--api-keys-file", str(path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "sk-secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_named() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        arguments = [sys.executable, "-m", "specpilot.gateway", "--engine", "http://x", "--port", port]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("specpilot gateway: --port: cannot listen on")
    assert done.stderr.count("\n") == 1


def test_help_names_every_setting() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specpilot.gateway", "--help"], capture_output=True, text=True, check=True
    )
    assert "--first-byte-timeout-s" in done.stdout


async def test_sigterm_lets_streams_finish_and_refuses_new_ones(engine: ScriptedEngine, start: Start) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 1.2, chunk(event("b")), LAST_CHUNK]
    program = await start("--engine", engine.url).started()
    async with await Client.connect(program.port) as stream, await Client.connect(program.port) as idle:
        stream.send(request(STREAM))
        await engine.wait_seen(1)
        await asyncio.sleep(0.2)
        program.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.4)
        assert (await call(program.port, request(path="/ready", method="GET"))).json == {"status": "draining"}
        assert (await call(program.port, request(path="/health", method="GET"))).status == 200
        refused = await call(program.port)
        assert (refused.status, refused.code) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        idle.send(request())
        assert (await idle.answer()).headers["connection"] == "close"
        answer = await stream.answer()
        assert answer.is_whole
        assert answer.body == event("a") + event("b")
    assert await program.end() == 0
    assert any('"status":200' in line for line in program.errors)


async def test_the_drain_time_out_ends_what_does_not_finish(engine: ScriptedEngine, start: Start) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 60.0]
    program = await start("--engine", engine.url, "--drain-timeout-s", "0.5").started()
    async with await Client.connect(program.port) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == 0
    async with asyncio.timeout(2):
        await engine.seen[0].closed.wait()


async def test_the_drain_grace_still_serves(engine: ScriptedEngine, start: Start) -> None:
    program = await start("--engine", engine.url, "--drain-grace-s", "3").started()
    async with await Client.connect(program.port) as kept, await Client.connect(program.port) as idle:
        for client in (kept, idle):
            client.send(request())
            assert "connection" not in (await client.answer()).headers
        program.process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        assert (await call(program.port, request(path="/ready", method="GET"))).status == 503
        kept.send(request())  # a balancer of connections would bring its requests here for as long as it stands
        answer = await kept.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        async with asyncio.timeout(2.5):
            assert await idle.reader.read() == b""
        assert program.process.poll() is None
        assert (await call(program.port)).status == 200
    assert await program.end() == 0


async def test_the_access_log_can_be_left_out(engine: ScriptedEngine, start: Start) -> None:
    program = await start("--engine", engine.url, "--no-access-log").started()
    assert (await call(program.port)).status == 200
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    assert not any(line.startswith("{") for line in program.errors)


async def test_a_process_that_stood_still_reads_what_came_before_it_judges_time_outs(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.script = [0.5, SSE_HEAD, chunk(event("a")), LAST_CHUNK]
    program = await start("--engine", engine.url, "--first-byte-timeout-s", "1").started()
    async with await Client.connect(program.port) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        program.process.send_signal(signal.SIGCONT)
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, event("a"))

"""Several workers on one port: real processes, their deaths, replacements and sums."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specpilot.gateway.engines.snapshot import hash_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.redis_store import RedisStore
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event, stream

Start = Callable[..., Awaitable[GatewayProgram]]
PREFIX = "specpilot_gateway_"


@pytest.fixture
async def start(engine: ScriptedEngine) -> AsyncIterator[Start]:
    running: list[GatewayProgram] = []

    async def begin(*flags: str, workers: int = 2) -> GatewayProgram:
        program = GatewayProgram(["--engine", engine.url, "--workers", str(workers), *flags])
        running.append(program)
        await program.started()
        await eventually(lambda: len(lines(program, "serves")) == workers, 20)
        return program

    yield begin
    for program in running:
        program.close()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """With the API key `sk-k`."""
    started = RedisServer()
    put_key(started)
    yield started
    started.close()


def put_key(redis: RedisServer) -> None:
    store = RedisStore(redis.url)
    store.put_api_key(ApiKey("k", hash_of("sk-k")))
    store.close()


async def statuses(program: GatewayProgram) -> set[int]:
    """What many connections with the key get; that all reach one of two workers happens once in 2^23 times."""
    asked = request(headers="authorization: Bearer sk-k\r\n")
    return {answer.status for answer in await asyncio.gather(*(call(program.port, asked) for _ in range(24)))}


def lines(program: GatewayProgram, text: str) -> list[str]:
    return [line for line in program.errors if text in line and not line.startswith("{")]


def children(program: GatewayProgram) -> list[int]:
    pid = program.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def folder_of(worker: int) -> Path:
    return next(Path(flag) for flag in arguments(worker) if "specpilot-gateway-" in flag)


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def metrics(program: GatewayProgram) -> dict[str, float]:
    """Each metric, summed over its labels."""
    text = (await call(program.port, request(path="/metrics", method="GET"))).body.decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            found[name] = found.get(name, 0.0) + sample.value
    return found


async def until(program: GatewayProgram, name: str, value: float) -> None:
    """Wait until the sum is `value`; it must not pass it, nor fall on the way."""
    last = 0.0
    async with asyncio.timeout(5):
        while last != value:
            found = (await metrics(program)).get(name, 0.0)
            assert last <= found <= value, name
            last = found


async def all_drain(program: GatewayProgram) -> None:
    """Wait until every worker says so; one in 2^12 times only one of two was asked."""

    async def ready() -> int:
        return (await call(program.port, request(path="/ready", method="GET"))).status

    async with asyncio.timeout(4):
        while await asyncio.gather(*(ready() for _ in range(12))) != [503] * 12:
            pass


def worker_of(request_id: str) -> str:
    """Each worker makes request ids of its own kind."""
    return request_id.rpartition("-")[0]


class Load:
    """Clients that call for as long as they are let, and what became of their requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered = 0
        self.broken = 0
        self.workers: set[str] = set()
        self._is_over = False

    async def call_anew(self) -> None:
        """A connection a request."""
        while not self._is_over:
            await self._on_signal(call(self.port))
            await asyncio.sleep(0.01)

    async def call_on_kept(self) -> None:
        """One connection for as long as the gateway keeps it."""
        while not self._is_over:
            async with await Client.connect(self.port) as client:
                is_kept = True
                while is_kept and not self._is_over:
                    client.send(request())
                    is_kept = await self._on_signal(client.answer())
                    await asyncio.sleep(0.01)

    async def _on_signal(self, calling: Awaitable[object]) -> bool:
        try:
            answer = await calling
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken += 1
            return False
        assert answer.status == 200  # type: ignore[attr-defined]
        assert answer.is_whole  # type: ignore[attr-defined]
        self.answered += 1
        self.workers.add(worker_of(answer.headers["x-request-id"]))  # type: ignore[attr-defined]
        return answer.headers.get("connection") != "close"  # type: ignore[attr-defined]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(self.call_anew())
                group.create_task(self.call_on_kept())
            try:
                yield
            finally:
                self._is_over = True


async def test_the_sum_of_all_workers_is_what_was_sent(engine: ScriptedEngine, start: Start) -> None:
    program = await start()
    engine.choose = lambda seen: stream("a", "b") if seen.json.get("stream") else engine.script
    workers: set[str] = set()

    async def work(at: int) -> None:
        async with await Client.connect(program.port) as client:
            for turn in range(6):
                client.send(request(STREAM if (at + turn) % 2 else None))
                answer = await client.answer()
                assert answer.status == 200
                workers.add(worker_of(answer.headers["x-request-id"]))

    await asyncio.gather(*(work(at) for at in range(40)))
    assert len(workers) == 2  # the kernel spreads 40 connections; all on one is as likely as 40 equal coins
    await until(program, "requests_total", 240)
    found = await metrics(program)
    assert found["request_duration_seconds_count"] == 240
    assert found["ttft_seconds_count"] == 120
    assert found["output_tokens_total"] == 120 * 2 + 120 * 3
    assert found["in_flight"] == 0


async def test_a_killed_worker_is_replaced_and_no_counter_goes_backwards(engine: ScriptedEngine, start: Start) -> None:
    program = await start()
    load = Load(program.port)
    scraped: list[float] = []
    async with load.running():
        await eventually(lambda: load.answered > 100 and len(load.workers) == 2)
        victim, other = children(program)
        os.kill(victim, signal.SIGKILL)
        answered = load.answered
        while not lines(program, "worker 3 serves") or load.answered < answered + 100:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                scraped.append((await metrics(program))["requests_total"])
        await eventually(lambda: len(load.workers) == 3)
    assert scraped == sorted(scraped)
    assert lines(program, "ended with status -9")
    assert is_alive(other)
    assert load.broken <= 12  # what was on the victim's connections; nobody is refused
    await asyncio.sleep(0)
    last = (await metrics(program))["requests_total"]
    assert last >= scraped[-1]
    process = program.process
    process.send_signal(signal.SIGTERM)
    assert await program.end() == 0


async def test_reload_refuses_and_loses_nothing(engine: ScriptedEngine, start: Start) -> None:
    program = await start()
    before = children(program)
    load = Load(program.port)
    async with load.running():
        await eventually(lambda: load.answered > 50)
        program.process.send_signal(signal.SIGHUP)
        await eventually(lambda: len(lines(program, "has left")) == 2, 30)
        after = children(program)
    assert load.broken == 0
    assert len(after) == 2
    assert not set(before) & set(after)
    await until(program, "requests_total", load.answered)


async def test_sigterm_drains_every_worker(engine: ScriptedEngine, start: Start) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 1.5, chunk(event("b")), LAST_CHUNK]
    program = await start()
    workers = children(program)

    async def stream_on() -> str:
        async with await Client.connect(program.port) as client:
            client.send(request(STREAM))
            answer = await client.answer()
            assert answer.is_whole
            assert answer.body == event("a") + event("b")
            return worker_of(answer.headers["x-request-id"])

    streams = [asyncio.create_task(stream_on()) for _ in range(24)]
    await engine.wait_seen(24)
    program.process.send_signal(signal.SIGTERM)
    assert len(set(await asyncio.gather(*streams))) == 2
    assert await program.end() == 0
    assert not any(map(is_alive, workers))
    assert not lines(program, "WARNING")


async def test_draining_workers_say_so(engine: ScriptedEngine, start: Start) -> None:
    program = await start("--drain-grace-s", "5")
    assert (await call(program.port, request(path="/ready", method="GET"))).status == 200
    program.process.send_signal(signal.SIGTERM)
    await all_drain(program)
    assert (await call(program.port)).status == 200
    assert await program.end() == 0


async def test_a_second_signal_ends_all_at_once(engine: ScriptedEngine, start: Start) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 60.0]
    program = await start("--drain-grace-s", "30")
    async with await Client.connect(program.port) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        program.process.send_signal(signal.SIGINT)
        await all_drain(program)
        await asyncio.sleep(0.6)  # what follows at once is the same signal, heard twice
        program.process.send_signal(signal.SIGINT)
        assert await program.end(5) == 0


async def test_a_signal_to_all_processes_at_once_drains_like_one_to_the_parent(
    engine: ScriptedEngine, start: Start
) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 1.0, chunk(event("b")), LAST_CHUNK]
    program = await start()
    async with await Client.connect(program.port) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        for pid in (*children(program), program.process.pid):
            os.kill(pid, signal.SIGTERM)
        answer = await client.answer()
    assert answer.is_whole
    assert event("b") in answer.body
    assert await program.end(10) == 0


async def test_workers_do_not_outlive_their_parent(start: Start) -> None:
    program = await start()
    workers = children(program)
    program.process.kill()
    await eventually(lambda: not any(map(is_alive, workers)), 10)


async def test_a_folder_that_is_cleaned_away_costs_metrics_for_a_while_and_no_request(start: Start) -> None:
    program = await start()
    assert (await call(program.port)).status == 200
    await until(program, "requests_total", 1)
    first, _ = children(program)
    folder = folder_of(first)
    shutil.rmtree(folder)
    found = await call(program.port, request(path="/metrics", method="GET"))
    assert (found.status, found.code) == (500, "internal_error")
    assert (await call(program.port)).status == 200
    os.kill(first, signal.SIGKILL)  # the next time that the ledger is written
    await eventually(lambda: lines(program, "worker 3 serves"), 20)
    assert (await call(program.port, request(path="/metrics", method="GET"))).status == 200
    assert folder.stat().st_mode & 0o077 == 0


async def test_access_logs_of_workers_do_not_mix(start: Start) -> None:
    program = await start()
    load = Load(program.port)
    async with load.running():
        await eventually(lambda: load.answered > 300)
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    logged = [line for line in program.errors if line.startswith("{")]
    assert sum('"path":"/v1/chat/completions"' in line and line.endswith("}\n") for line in logged) == load.answered


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--api-keys-file", "/does/not/exist"], "--api-keys-file:"),
        (["--port", "hundred"], "--port:"),
        (["--host", "not an address"], "--host:"),
        (["--workers", "0"], "--workers:"),
    ],
)
def test_a_bad_setting_is_reported_once(flags: list[str], said: str) -> None:
    command = [
        sys.executable,
        "-m",
        "specpilot.gateway",
        "--engine",
        "http://x",
        "--port",
        "0",
        "--workers",
        "3",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


async def test_a_port_that_another_gateway_shares_among_its_workers_is_taken(start: Start) -> None:
    program = await start()
    command = [
        sys.executable,
        "-m",
        "specpilot.gateway",
        "--engine",
        "http://x",
        "--port",
        str(program.port),
        "--workers",
        "2",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "--port: cannot listen on" in done.stderr


def test_a_temporary_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_TEMPORARY, "--engine", "http://x", "--port", "0", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_that_is_full_at_the_start_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", FULL_DISK, "--engine", "http://x", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
    assert done.returncode == 2
    assert f"cannot be written to {tmp_path}/specpilot-gateway-" in done.stderr
    assert "TMPDIR" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


async def test_reload_replaces_a_worker_that_is_still_starting(
    engine: ScriptedEngine, start: Start, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key_id": "a", "key": "old"}]')
    program = await start("--api-keys-file", str(keys))
    victim, _ = children(program)
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: [pid for pid in children(program) if "3" in arguments(pid)], 20)  # has the third begun
    keys.write_text('[{"key_id": "a", "key": "new"}]')
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: len(lines(program, "has left")) == 2, 30)
    statuses = [
        (await call(program.port, request(headers=f"authorization: Bearer {key}\r\n"))).status
        for key in ("new", "old") * 12
    ]
    assert statuses == [200, 401] * 12


async def test_a_reload_without_redis_keeps_the_workers_that_know_the_keys(start: Start, redis: RedisServer) -> None:
    program = await start("--redis-url", redis.url)
    before = children(program)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "[worker 3]: the old worker serves on until Redis was read"), 20)
    assert await statuses(program) == {200}
    (successor,) = set(children(program)) - set(before)
    os.kill(successor, signal.SIGTERM)  # its patience is tested elsewhere
    await eventually(lambda: lines(program, "the slot's other worker goes on, the reload ends here"))
    assert children(program) == before
    assert await statuses(program) == {200}

    redis.start()
    put_key(redis)
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: len(lines(program, "has left")) == 2, 30)
    assert not set(before) & set(children(program))
    assert await statuses(program) == {200}


async def test_a_reload_goes_on_when_redis_comes_back(start: Start, redis: RedisServer) -> None:
    program = await start("--redis-url", redis.url)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "the old worker serves on"), 20)
    redis.start()
    put_key(redis)
    await eventually(lambda: len(lines(program, "has left")) == 2, 30)
    assert await statuses(program) == {200}


async def test_workers_that_replace_dead_ones_do_not_wait_for_redis(start: Start, redis: RedisServer) -> None:
    program = await start("--redis-url", redis.url)
    victim, other = children(program)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "[worker 3]: the old worker serves on"), 20)
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: lines(program, "worker 3 serves"))
    os.kill(other, signal.SIGKILL)  # its successor is starting
    await eventually(lambda: lines(program, "worker 4 serves"), 20)
    assert await statuses(program) == {503}
    redis.start()
    put_key(redis)
    await eventually(lambda: len(lines(program, "Redis answers again")) == 2)
    assert await statuses(program) == {200}


async def test_a_gateway_without_redis_starts_all_workers_and_stops_while_one_waits(
    start: Start, redis: RedisServer
) -> None:
    redis.stop()
    program = await start("--redis-url", redis.url)
    assert await statuses(program) == {503}
    assert (await call(program.port, request(path="/health", method="GET"))).status == 200
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "the old worker serves on"), 20)
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0


# Room for the file by which `tempfile` tries a directory, and for no more.
FULL_DISK = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8));"
    "import specpilot.gateway.__main__ as g; g.main(sys.argv[1:])"
)
NO_TEMPORARY = (
    "import sys, tempfile; tempfile.tempdir = '/does/not/exist';"
    "import specpilot.gateway.__main__ as g; g.main(sys.argv[1:])"
)

"""Connections to engines, over real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.engines.probe import fetch_models
from specpilot.gateway.engines.upstream import Address, Pool, tls_context
from specpilot.gateway.wire.framing import ResponseHead
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import HANG, ScriptedEngine, reply
from tests.support.tcp_server import end

REQUEST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


class Ear:
    """Hears what a reader hears."""

    def __init__(self) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.heard = b""

    def head(self, head: ResponseHead) -> None:
        pass

    def body(self, data: bytes) -> None:
        self.heard += data

    def complete(self) -> None:
        self.over.set_result("end")

    def reset(self, reason: str, *, is_stale: bool) -> None:
        self.over.set_result(f"{reason}, stale: {is_stale}")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedEngine]:
    started = await ScriptedEngine().start()
    yield started
    await started.stop()


@pytest.fixture
async def pool(server: ScriptedEngine) -> AsyncIterator[Pool]:
    made = Pool(Address(server.url), keep_alive_s=4.0)
    yield made
    made.close()
    await asyncio.sleep(0.01)


async def test_who_had_the_connection_before_cannot_close_it_now(server: ScriptedEngine, pool: Pool) -> None:
    server.script = [reply(b"1")]
    connection = await pool.connect()
    first, second = Ear(), Ear()
    connection.send(first, (REQUEST,))
    assert await first.over == "end"
    again = pool.acquire(0.0)
    assert again is connection
    again.send(second, (REQUEST,))
    connection.release(first)
    assert await second.over == "end"
    assert second.heard == b"1"


async def test_release_closes_what_is_under_way(server: ScriptedEngine, pool: Pool) -> None:
    server.script = [HANG]
    connection = await pool.connect()
    ear = Ear()
    connection.send(ear, (REQUEST,))
    await server.wait_seen(1)
    connection.release(ear)
    async with asyncio.timeout(PATIENCE_S):
        await server.seen[0].closed.wait()
    assert not ear.over.done()


async def test_the_newest_connection_is_taken_and_old_ones_are_closed(server: ScriptedEngine, pool: Pool) -> None:
    connections = [await pool.connect() for _ in range(3)]
    pool.sweep(10.0)
    for connection in connections[:2]:
        pool.put_back(connection)
    pool.sweep(13.0)
    pool.put_back(connections[2])
    assert pool.acquire(13.5) is connections[2]
    pool.put_back(connections[2])
    pool.sweep(14.5)  # the first two are 4.5 s old
    assert pool.acquire(14.5) is connections[2]
    assert pool.acquire(14.5) is None
    assert pool.acquire(14.5) is None
    connections[2].abort()


async def test_bytes_nobody_asked_for_close_an_idle_connection(server: ScriptedEngine, pool: Pool) -> None:
    server.script = [reply(b"1"), 0.02, b"HTTP/1.1 200 OK\r\n"]
    connection = await pool.connect()
    ear = Ear()
    connection.send(ear, (REQUEST,))
    assert await ear.over == "end"
    async with asyncio.timeout(PATIENCE_S):
        await server.seen[0].closed.wait()
    assert pool.acquire(0.0) is None


async def test_asking_and_sending_do_not_disturb_each_other(server: ScriptedEngine, pool: Pool) -> None:
    engine = Engine("e", server.url, pool, Address(server.url), None)
    server.script = [reply(b"1")]
    is_over = False

    async def asks() -> None:
        while not is_over:
            assert (await fetch_models(engine, 5.0))[0]["id"] == "tiny"

    task = asyncio.create_task(asks())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(500):
            ear = Ear()
            (pool.acquire(0.0) or await pool.connect()).send(ear, (REQUEST,))
            assert await ear.over == "end"
    is_over = True
    await task


@pytest.mark.parametrize(
    ("url", "host", "port", "header", "prefix"),
    [
        ("http://engine:8100", "engine", 8100, b"engine:8100", b""),
        ("http://engine/base/", "engine", 80, b"engine:80", b"/base"),
        ("https://engine", "engine", 443, b"engine:443", b""),
        ("http://[::1]:8", "::1", 8, b"[::1]:8", b""),
        ("http://[fe80::1%25eth0]:8", "fe80::1%25eth0", 8, b"[fe80::1]:8", b""),
    ],
)
def test_addresses(url: str, host: str, port: int, header: bytes, prefix: bytes) -> None:
    found = Address(url)
    assert (found.host, found.port, found.host_header, found.prefix) == (host, port, header, prefix)
    assert (found.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    "url",
    ["http://fd00::5:8000", "http://h:80000", "http://h:${PORT}", "http://[fd00::5:8000", "h:8000", "http://", ""],
)
def test_what_names_no_place_is_no_address(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - some of urlsplit's, some of ours
        Address(url)


async def test_an_address_must_have_the_certificate_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("vllm", "vllm.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    tls_context.cache_clear()
    request.addfinalizer(tls_context.cache_clear)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        connection = await Pool(Address(url, "vllm.test"), keep_alive_s=4.0).connect()
        connection.abort()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Pool(Address(url, "other.test"), keep_alive_s=4.0).connect()
        with pytest.raises(ssl.SSLCertVerificationError):
            await Pool(Address(url), keep_alive_s=4.0).connect()
        await end(server)

"""TLS towards clients, its certificates replaced while it serves, and TLS towards engines."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from specpilot.gateway.process import certificates
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.relay import client_reader
from tests.contract.conftest import StartGateway, StartProgram
from tests.support.certificates import Authority, lock
from tests.support.gateway_client import STREAM, Answer, Client, request
from tests.support.gateway_server import eventually
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, completion, reply, stream
from tests.support.stack import free_port


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.05)


def replace(path: str, text: bytes) -> bytes:
    """Return what was in the file."""
    old = Path(path).read_bytes()
    Path(path).write_bytes(text)
    return old


def trusting(authority: Authority, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


async def connect(port: int, context: ssl.SSLContext) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=2**20))


async def call(port: int, context: ssl.SSLContext, data: bytes | None = None) -> Answer:
    async with await connect(port, context) as client:
        client.send(request() if data is None else data)
        return await client.answer()


def served_by(client: Client) -> int:
    """The serial number of the certificate that the gateway showed."""
    found: dict[str, Any] = client.writer.get_extra_info("peercert")
    return int(found["serialNumber"], 16)


async def serial(port: int, context: ssl.SSLContext) -> int:
    async with await connect(port, context) as client:
        return served_by(client)


async def until_another(port: int, context: ssl.SSLContext, old: int, timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while await serial(port, context) == old:
            pass


async def test_a_new_certificate_serves_new_connections_and_the_old_ones_go_on(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority
) -> None:
    cert, key = authority.issue("gateway")
    admin_port = free_port()
    gateway = await start_gateway(engine, tls_cert_file=cert, tls_key_file=key, admin_port=admin_port)
    context = trusting(authority)
    release = asyncio.Event()
    head, *frames = stream("a", "b")
    engine.scripts = [[head, frames[0], release, *frames[1:]], [reply(completion())]]
    async with await connect(gateway.port, context) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        old = served_by(client)
        old_admin = await serial(admin_port, context)
        authority.issue("gateway")
        await until_another(gateway.port, context, old)
        await until_another(admin_port, context, old_admin)
        release.set()
        answer = await client.answer()
        assert answer.is_whole
        assert b"[DONE]" in answer.body
        client.send(request())  # and it is kept
        assert (await client.answer()).status == 200
    assert (await call(gateway.port, context)).status == 200
    metrics = request(path="/metrics", method="GET")
    assert (await call(gateway.port, context, metrics)).status == 404
    assert (await call(admin_port, context, metrics)).status == 200


async def test_a_page_that_is_the_last_answer_ends_its_connection_at_once(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS has no half-close, so a client that reads up to the end would wait for the whole connection's."""
    monkeypatch.setattr(client_reader, "LINGER_S", 2 * PATIENCE_S)
    cert, key = authority.issue("gateway")
    admin_port = free_port()
    gateway = await start_gateway(engine, tls_cert_file=cert, tls_key_file=key, admin_port=admin_port)
    for port, path in ((gateway.port, "/health"), (gateway.port, "/nowhere"), (admin_port, "/metrics")):
        async with await connect(port, trusting(authority)) as client:
            client.send(request(b"", path=path, method="GET", headers="connection: close\r\n"))
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.is_closed()


async def test_files_that_do_not_fit_leave_the_old_certificate(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = authority.issue("gateway")
    gateway = await start_gateway(engine, tls_cert_file=cert, tls_key_file=key)
    context = trusting(authority)
    old = await serial(gateway.port, context)
    whole = replace(key, b"half of a ke")
    await eventually(lambda: "the certificates in use stay: --tls-cert-file" in caplog.text)
    await asyncio.sleep(0.3)
    assert caplog.text.count("the certificates in use stay") == 1  # said once
    assert await serial(gateway.port, context) == old
    replace(key, whole)
    authority.issue("gateway")
    await until_another(gateway.port, context, old)


async def test_clients_need_a_certificate_of_the_authority_that_is_in_the_file_now(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("gateway")
    other = Authority(tmp_path, "other")
    clients = tmp_path / "clients.pem"
    shutil.copy(authority.path, clients)
    admin_port = free_port()
    gateway = await start_gateway(
        engine, tls_cert_file=cert, tls_key_file=key, tls_client_ca_file=str(clients), admin_port=admin_port
    )
    mine, theirs = trusting(authority, authority.issue("mine")), trusting(authority, other.issue("theirs"))
    assert (await call(gateway.port, mine)).status == 200
    for stranger in (theirs, trusting(authority)):
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await call(gateway.port, stranger)
    assert not engine.seen[1:]
    assert (await call(admin_port, trusting(authority), request(path="/ready", method="GET"))).status == 200
    shutil.copy(other.path, clients)

    async def is_let_in(context: ssl.SSLContext) -> bool:
        try:
            return (await call(gateway.port, context)).status == 200
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            return False

    async with asyncio.timeout(PATIENCE_S):
        while not await is_let_in(theirs):
            pass
    assert not await is_let_in(mine)


async def test_handshakes_under_way_count_as_connections(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot.gateway.process.port.HANDSHAKE_S", 3600.0)
    cert, key = authority.issue("gateway")
    gateway = await start_gateway(engine, tls_cert_file=cert, tls_key_file=key, max_connections=4)
    context = trusting(authority)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await connect(gateway.port, context))
        client.send(request())
        assert (await client.answer()).status == 200
        listener = gateway.server.ports[0]
        silent = [await stack.enter_async_context(await Client.connect(gateway.port)) for _ in range(3)]
        await eventually(lambda: len(listener._handshakes) == 3)
        late = await stack.enter_async_context(await Client.connect(gateway.port))
        assert await late.is_closed()
        assert gateway.context.metrics.refusals["connections"] == 1
        client.send(request())
        assert (await client.answer()).status == 200
        for waiting in silent:
            waiting.close()
        await eventually(lambda: not listener._handshakes)
        monkeypatch.setattr("specpilot.gateway.process.port.HANDSHAKE_S", 0.3)
        for _ in range(4):  # those that are too slow leave their place, too
            async with await Client.connect(gateway.port) as slow:
                assert await slow.is_closed()
            await eventually(lambda: not listener._handshakes)
        for _ in range(8):  # and those that fail at once
            async with await Client.connect(gateway.port, request()) as plain:
                assert await plain.is_closed()
            await eventually(lambda: not listener._handshakes)
        monkeypatch.setattr("specpilot.gateway.process.port.HANDSHAKE_S", 3600.0)
        assert (await call(gateway.port, context)).status == 200
    assert len(engine.seen) == 3  # nothing that came without TLS
    assert gateway.context.metrics.refusals["connections"] == 1


async def test_files_that_cannot_be_used_end_the_start_with_a_line(
    engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("gateway")
    _, other_key = authority.issue("other")
    locked = lock(authority.issue("locked")[1])
    missing = str(tmp_path / "missing.pem")
    for files, said in (
        ({"tls_cert_file": missing}, "--tls-cert-file: .*missing.pem: No such file"),
        ({"tls_cert_file": cert, "tls_key_file": other_key}, "--tls-cert-file: .*MISMATCH"),
        ({"tls_cert_file": cert, "tls_key_file": locked}, "--tls-cert-file: .*locked.key.pem"),
        ({"tls_cert_file": cert, "tls_key_file": key, "tls_client_ca_file": missing}, "missing.pem"),
        ({"engine_ca_file": missing}, "--engine-ca-file: .*missing.pem: No such file"),
        ({"engine_cert_file": cert, "engine_key_file": other_key}, "--engine-cert-file: .*MISMATCH"),
    ):
        with pytest.raises(StartError, match=said):
            await start_gateway(engine, **files)
    for files in ({"tls_key_file": key}, {"tls_client_ca_file": cert}, {"engine_key_file": key}):
        with pytest.raises(ValueError, match="there is no certificate to use it with"):
            await start_gateway(engine, **files)


# Towards engines


@pytest.fixture
async def tls_engine(authority: Authority) -> AsyncIterator[ScriptedEngine]:
    """An engine that wants a certificate of `authority`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*authority.issue("engine"))
    async with ScriptedEngine(tls=context) as started:
        yield started


async def test_engines_are_checked_by_an_authority_of_ones_own_and_shown_a_certificate(
    tls_engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = authority.issue("client")
    ca = str(authority.path)
    gateway = await start_gateway(tls_engine, engine_ca_file=ca, engine_cert_file=cert, engine_key_file=key)
    async with await Client.connect(gateway.port, request()) as client:
        assert (await client.answer()).status == 200
    (engine,) = gateway.context.fleet.engines.values()
    assert engine._address.tls() is engine._address.tls()  # made once
    bare = await start_gateway(tls_engine, engine_ca_file=ca)
    assert not bare.context.fleet.by_model
    unknown = await start_gateway(tls_engine, engine_cert_file=cert, engine_key_file=key)
    assert not unknown.context.fleet.by_model
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    assert len(tls_engine.seen) == 1


async def test_a_new_client_certificate_is_shown_to_engines(
    tls_engine: ScriptedEngine, start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    cert, key = stranger.issue("client")
    gateway = await start_gateway(
        tls_engine, engine_ca_file=str(authority.path), engine_cert_file=cert, engine_key_file=key
    )
    assert not gateway.context.fleet.by_model
    authority.issue("client")
    await eventually(lambda: gateway.context.fleet.by_model)


async def test_workers_take_new_certificates_each(start_workers: StartProgram, authority: Authority) -> None:
    """As programs, with the real pause between two looks."""
    cert, key = authority.issue("gateway")
    program = await start_workers("--tls-cert-file", cert, "--tls-key-file", key)
    context = trusting(authority)
    old = await serial(program.port, context)
    assert {await serial(program.port, context) for _ in range(12)} == {old}
    authority.issue("gateway")
    await until_another(program.port, context, old)
    async with asyncio.timeout(PATIENCE_S):
        while len(found := {await serial(program.port, context) for _ in range(12)}) > 1 or old in found:
            pass
    for _ in range(12):
        assert (await call(program.port, context)).status == 200
    program.process.terminate()
    assert await program.end() == 0

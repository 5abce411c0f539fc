"""What goes through the user's proxy, and what does not."""

import io
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import aiohttp
import pytest

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.policy.clock import SystemClock
from specpilot.policy.http_client import (
    CONTROLLER,
    PART,
    is_direct,
    is_on_this_machine,
    open_url,
    reach_this_machine_directly,
)
from specpilot.status_line import StatusLine
from specpilot.up_parts import answers
from tests.support.stack import ROOT

PROGRAMS = ("gateway", "controller", "engine_adapter", "specpilot", "policy", "bench")


class Server(HTTPServer):
    """Answers everything, and keeps what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("location", "/elsewhere")
        self.send_header("content-length", "2")
        if self.path == "/admin":
            self.send_header(PART, CONTROLLER)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = Server()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{found.server_port}")
    yield found
    found.close()


def test_the_loopback_and_own_parts_are_asked_directly_and_the_rest_through_the_proxy(
    server: Server, proxy: Server
) -> None:
    here = f"http://127.0.0.1:{server.server_port}"
    assert answers(f"{here}/health")()
    assert AdminClient(AdminSettings(admin_url=here), "test").ask("/admin") == {}
    open_url(f"http://localhost:{server.server_port}/metrics", 5.0).close()
    assert (server.asked, proxy.asked) == (["/health", "/admin", "/metrics"], [])
    open_url("http://issuer.example/keys", 5.0).close()
    assert proxy.asked == ["http://issuer.example/keys"]
    with pytest.raises(OSError, match=r"."):
        open_url("http://controller.invalid/", 5.0, is_own=True)
    assert len(proxy.asked) == 1


def test_a_token_follows_no_redirect(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        AdminClient(AdminSettings(admin_url=f"http://127.0.0.1:{server.server_port}"), "test").ask("/moved")
    assert server.asked == ["/moved"]
    assert capsys.readouterr().err.startswith("test: --admin-url: no controller answers at http://127.0.0.1:")


def other_than(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "answer",
    [
        *map(other_than, (b"{}", b"null", b"[]", b'"a"', b"", b"<html>")),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"-ERR unknown command\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}",
        b"HTTP/1.1 500 Failed\r\ncontent-length: 9\r\n\r\n{}",
    ],
)
def test_a_server_that_is_no_controller_ends_a_command_in_one_line(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            for _ in range(3):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SystemExit) as ended:
            AdminClient(AdminSettings(admin_url=url), "test").ask("/admin")
        assert not answers(f"{url}/health")() or answer.startswith(b"HTTP/1.1 200 OK\r\nc")
        StatusLine("http://127.0.0.1:9", [url], SystemClock()).show(io.StringIO())
        thread.join()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert url in said
    if answer.startswith(b"HTTP/1.1") and b"content-length" in answer:
        assert "another server" in said


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8100/x", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:1/", True),
        ("http://LOCALHOST/", True),
        ("http://a.localhost", True),
        ("http://[::ffff:127.0.0.1]/", True),
        ("http://10.0.0.1/", False),
        ("http://localhost.example/", False),
        ("http://[", False),
    ],
)
def test_what_is_on_this_machine(url: str, expected: bool) -> None:
    assert is_on_this_machine(url) is expected


@pytest.mark.parametrize(
    ("stated", "url", "expected"),
    [
        ("10.0.0.0/8, fd00::/8", "http://10.1.2.3:9090", True),
        ("10.0.0.0/8,fd00::/8", "http://[fd00::7]:9090", True),
        ("10.0.0.1/8", "https://10.9.9.9", True),
        ("10.0.0.0/8", "http://11.0.0.1", False),
        ("10.0.0.0/8", "http://prometheus", False),
        ("Prometheus:9090", "http://prometheus:9090/api", True),
        ("prometheus:9091", "http://prometheus:9090", False),
        ("issuer.example:443", "https://issuer.example/keys", True),
        ("no/network", "http://10.0.0.1", False),
    ],
)
@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
def test_networks_and_ports_in_no_proxy(
    variable: str, stated: str, url: str, expected: bool, proxy: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, stated)
    assert is_direct(url) is expected
    if not expected and not url.startswith("https"):
        open_url(url, 5.0).close()
        assert proxy.asked


@pytest.mark.parametrize("stated", ["", "internal.example", "*"])
async def test_a_library_that_takes_every_proxy_reaches_this_machine_directly(
    server: Server, proxy: Server, monkeypatch: pytest.MonkeyPatch, stated: str
) -> None:
    """As `vllm bench serve` does, which drives the load of a sweep."""
    monkeypatch.setenv("no_proxy", "")  # restored in any case
    monkeypatch.setenv("NO_PROXY", stated)
    reach_this_machine_directly(os.environ)
    async with aiohttp.ClientSession(trust_env=True) as session:
        for host in ("127.0.0.1", "localhost"):
            await (await session.get(f"http://{host}:{server.server_port}/{host}")).read()
        if stated != "*":
            await (await session.get("http://engine.example/v1/models")).read()
    assert server.asked == ["/127.0.0.1", "/localhost"]
    assert proxy.asked == ([] if stated == "*" else ["http://engine.example/v1/models"])


def test_every_request_follows_the_rule() -> None:
    """`urlopen` is called nowhere; aiohttp, which takes no proxy by itself, takes one where that is asked for."""
    found = [
        str(path.relative_to(ROOT))
        for program in PROGRAMS
        for path in (ROOT / program).rglob("*.py")
        if "urlopen(" in path.read_text() and not (ROOT / program).is_symlink()
    ]
    assert found == []
    for image in (ROOT / "deploy" / "images").glob("*Dockerfile"):
        assert "urlopen(" not in image.read_text()

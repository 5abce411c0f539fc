"""Violated expectations of a rolling update, and the gateways that its clients choose."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from specpilot.bench.fleet import endpoint_calls
from specpilot.bench.fleet.endpoint_calls import Callers
from specpilot.bench.fleet.rolling import broken_promises, markdown
from tests.support.stack import free_port, until


class Backend(ThreadingHTTPServer):
    """Answers `/ready`, and counts requests by client; its connections stay open."""

    request_queue_size = 128  # with fewer a connection may be retried after a second

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: Counter[int] = Counter()
        self.is_ready = True


class Handler(BaseHTTPRequestHandler):
    server: Backend
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200 if self.server.is_ready else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls[self.client_address[1]] += 1
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Backend]:
    with Backend() as backend:
        thread = threading.Thread(target=backend.serve_forever, args=(0.01,))
        thread.start()
        yield backend
        backend.shutdown()
        thread.join()


def test_connections_go_to_who_is_ready_and_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_calls, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(endpoint_calls, "random", SimpleNamespace(sample=lambda ports, _: ports))
    with running() as first, running() as second:
        callers = Callers([free_port(), first.server_port, second.server_port], "m", 8, pause_s=0.01, keeping=4)
        callers.start()
        try:
            until(lambda: len(first.calls) > 8)  # the port before it refuses
            assert not second.calls
            first.is_ready = False
            until(lambda: len(second.calls) > 40)
            before = first.calls.copy()
            until(lambda: first.calls.total() > before.total() + 40)
        finally:
            callers.end()
        assert len(first.calls - before) == 4  # the connections that are kept
    assert callers.counts["lost"] == 0


@pytest.mark.parametrize(
    ("changes", "faults", "said"),
    [
        ({}, [], []),
        ({"failed": 2}, [], ["engine: 2 failed of 9"]),
        ({"lost": 1}, [], ["engine: 1 lost of 9"]),
        ({"sent": 0}, [], ["engine: nothing was sent"]),
        ({}, ["not one controller leads"], ["not one controller leads"]),
    ],
)
def test_promises(changes: dict[str, int], faults: list[str], said: list[str]) -> None:
    row = {"seconds": 20.0, "sent": 9, "failed": 0, "lost": 0, **changes}
    assert broken_promises({"engine": row}, faults) == said
    assert f"| engine | 20 | {row['sent']} | {row['failed']} | {row['lost']} |" in markdown({"engine": row})

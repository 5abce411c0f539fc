"""A small HTTP server on threads of its own, for what a program asks of others."""

from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request; the names of its headers in small letters."""

    path: str
    headers: dict[str, str]
    body: bytes


class HttpServer:
    """Answers each GET and POST on a free port by `answer`, which returns a status and a body, until it is closed."""

    def __init__(self, answer: Callable[[Asked], tuple[int, bytes]], content_type: str = "application/json") -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, text = answer(Asked(self.path, headers, body))
                self.send_response(status)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

"""Requests to `/invocations` like a managed endpoint's platform sends them for boto3's `invoke_endpoint`.

The platform sends the body unchanged, `Content-Type`, `Accept` and its own `X-Amzn-SageMaker-*` headers, and none of
the client's. Three shapes alternate: a chat, a chat that streams (`invoke_endpoint_with_response_stream`), a
completion. Each asks for an exact number of tokens, so that a short answer is recognised as wrong.
"""

import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "X-Amzn-SageMaker-Custom-Attributes": "specpilot-bench",
}
TIMEOUT_S = 120.0
PAUSE_S = 0.5
PING_EVERY_S = 0.5
_OK = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """A request without a right answer: its begin and end (monotonic seconds), and its verdict."""

    began: float
    ended: float
    what: str
    detail: str


def body_of(number: int, model: str) -> tuple[dict[str, Any], int]:
    """Return the body of request `number` and the tokens that it asks for."""
    tokens = 8 + number % 25
    asked = {"model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    chat = {**asked, "messages": [{"role": "user", "content": f"Write a function that adds {number}."}]}
    shapes = (chat, {**chat, "stream": True}, {**asked, "prompt": f"def add_{number}("})
    return shapes[number % len(shapes)], tokens


def verdict(status: int, text: bytes, tokens: int, *, streams: bool) -> tuple[str, str]:
    """Return `ok`, `refused` (an error in OpenAI's envelope) or `wrong`, and a detail."""
    if status != _OK:
        try:
            return "refused", f"{status} {json.loads(text)['error']['code']}"
        except (ValueError, KeyError, TypeError):
            return "wrong", f"{status} {text[:80]!r}"
    if streams:
        if not text.rstrip().endswith(b"data: [DONE]"):
            return ("refused", "an error event") if b'"error"' in text else ("wrong", f"a stream ends {text[-80:]!r}")
        return "ok", ""
    try:
        found = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return "wrong", f"no completion: {text[:80]!r}"
    return ("ok", "") if found == tokens else ("wrong", f"{found} tokens of {tokens}")


class Callers:
    """Clients that call until `end`, and one that polls `/ping`."""

    def __init__(self, port: int, model: str, clients: int, pause_s: float = PAUSE_S, keeping: int = 0) -> None:
        """`keeping` of the `clients` keep their connection; the others open one for each request."""
        self.counts: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.pings: list[tuple[float, bool]] = []  # time, and whether the answer was 200
        self._port = port
        self._model = model
        self._number = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pause_s = pause_s
        self.threads = [threading.Thread(target=self._call, args=(at < keeping,)) for at in range(clients)]
        self.threads.append(threading.Thread(target=self._ping))

    def start(self) -> None:
        """Begin."""
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        """Wait for the requests in flight, and stop."""
        self._ended.set()
        for thread in self.threads:
            thread.join()

    def is_served_again(self, since: int) -> bool:
        """Return whether `/ping`, after its first `since` answers, was not 200 at least once and is 200 now."""
        later = [is_ok for _, is_ok in self.pings[since:]]
        return not all(later) and later[-1]

    def _call(self, keeps: bool) -> None:  # noqa: FBT001 - of a thread
        connection = self._connection()
        while not self._ended.wait(self._pause_s):
            with self._lock:
                number = self._number
                self._number += 1
            began = time.monotonic()
            body, tokens = body_of(number, self._model)
            try:
                status, text = _ask(connection, "POST", "/invocations", json.dumps(body).encode(), HEADERS)
                what, detail = verdict(status, text, tokens, streams=bool(body.get("stream")))
            except (OSError, http.client.HTTPException) as error:
                what, detail = "lost", repr(error)
            if not keeps or what == "lost":
                connection.close()  # the next request opens it again
            with self._lock:
                self.counts["sent"] += 1
                self.counts[what] += 1
                if what != "ok":
                    self.faults.append(Fault(began, time.monotonic(), what, detail))
        connection.close()

    def _ping(self) -> None:
        connection = self._connection()
        while not self._ended.wait(PING_EVERY_S):
            try:
                found = _ask(connection, "GET", "/ping", None, {})[0] == _OK
            except (OSError, http.client.HTTPException):
                found = False
            connection.close()
            self.pings.append((time.monotonic(), found))

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Return status and body. Raises `OSError` and `HTTPException` for an incomplete answer."""
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()

"""Requests to `/invocations` like a managed endpoint's platform sends them for boto3's `invoke_endpoint`.

The platform sends the body unchanged, `Content-Type`, `Accept` and its own `X-Amzn-SageMaker-*` headers, and none of
the client's. Three shapes alternate: a chat, a chat that streams (`invoke_endpoint_with_response_stream`), a
completion. Each asks for an exact number of tokens, so that a short answer is recognised as wrong.

With several ports the clients spread over them as behind a load balancer of connections, like kube-proxy: a new
connection goes to a port whose `/ready` is 200, and to another one when it is refused. An open one stays where it is.
"""

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
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
CHECK_EVERY_S = 0.5
"""Seconds between two requests for `/ready`: a drain's grace must be longer."""
_OK = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """A request without a right answer: its begin and end (monotonic seconds), and its verdict."""

    began: float
    ended: float
    outcome: str
    detail: str


def body_of(number: int, model: str) -> tuple[dict[str, Any], int]:
    """Return the body of request `number` and the tokens that it asks for."""
    tokens = 8 + number % 25
    shared = {"model": model, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    chat = {**shared, "messages": [{"role": "user", "content": f"Write a function that adds {number}."}]}
    shapes = (chat, {**chat, "stream": True}, {**shared, "prompt": f"def add_{number}("})
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
        count = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return "wrong", f"no completion: {text[:80]!r}"
    return ("ok", "") if count == tokens else ("wrong", f"{count} tokens of {tokens}")


class Callers:
    """Clients that call until `end`, and one that polls `/ping`."""

    def __init__(
        self, ports: Sequence[int], model: str, clients: int, pause_s: float = PAUSE_S, keeping: int = 0
    ) -> None:
        """`keeping` of the `clients` keep their connection; the others open one for each request.

        `ports` may change meanwhile.
        """
        self.counts: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.pings: list[tuple[float, bool]] = []  # time, and whether the answer was 200
        self._ports = ports
        self._ready: Sequence[int] = list(ports)
        self._model = model
        self._number = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._pause_s = pause_s
        self.threads = [threading.Thread(target=self._call, args=(at < keeping,)) for at in range(clients)]
        self.threads += [threading.Thread(target=self._ping), threading.Thread(target=self._check)]

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
        connection: http.client.HTTPConnection | None = None
        while not self._ended.wait(self._pause_s):
            with self._lock:
                number = self._number
                self._number += 1
            began = time.monotonic()
            body, tokens = body_of(number, self._model)
            try:
                if connection is None or connection.sock is None:
                    connection = self._connect()
                status, text = _ask(connection, "POST", "/invocations", json.dumps(body).encode(), HEADERS)
                outcome, detail = verdict(status, text, tokens, streams=bool(body.get("stream")))
            except (OSError, http.client.HTTPException) as error:
                outcome, detail = "lost", repr(error)
            if connection is not None and (not keeps or outcome == "lost"):
                connection.close()
            with self._lock:
                self.counts["sent"] += 1
                self.counts[outcome] += 1
                if outcome != "ok":
                    self.faults.append(Fault(began, time.monotonic(), outcome, detail))
        if connection is not None:
            connection.close()

    def _ping(self) -> None:
        while not self._ended.wait(PING_EVERY_S):
            try:
                is_ok = _is_ok(self._connect(), "/ping")
            except OSError:
                is_ok = False
            self.pings.append((time.monotonic(), is_ok))

    def _check(self) -> None:
        while not self._ended.wait(CHECK_EVERY_S):
            if len(self._ports) > 1:
                self._ready = [port for port in list(self._ports) if _is_ok(_connection(port, 1.0), "/ready")]

    def _connect(self) -> http.client.HTTPConnection:
        """Return an open connection to a port that is ready. Raises `OSError` when all refuse."""
        ports = list(self._ready or self._ports)
        refusal = OSError("there is no port")
        for port in random.sample(ports, len(ports)):
            connection = _connection(port, TIMEOUT_S)
            try:
                connection.connect()
                return connection
            except OSError as error:
                refusal = error
        raise refusal


def _connection(port: int, timeout_s: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)


def _is_ok(connection: http.client.HTTPConnection, path: str) -> bool:
    """Return whether a GET of `path` is answered with 200; closes the connection."""
    try:
        return _ask(connection, "GET", path, None, {})[0] == _OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    """Return status and body. Raises `OSError` and `HTTPException` for an incomplete answer."""
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()

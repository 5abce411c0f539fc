"""Calibration: a started engine measures its step times with requests of its own, before traffic.

Otherwise the engine's law would learn the cost of a K from users' requests: in the first seconds at each load it would
use a cost that was measured at another load. Calibration takes seconds and ends before the engine registers. It uses
the engine's own HTTP API, so its steps do the same work as a user's steps. Data-parallel ranks share that API: each
sends its requests to itself (vLLM's header `X-data-parallel-rank`), at the same time as the others, as under load.

For each number of running requests, powers of two up to `max_num_seqs`, four settings are measured in turn with the
same requests: K = 0, K_max, a middle K, and half of the requests at K_max with the others at K = 1 (at K_max = 1: at
K = 0). Without the last setting verified tokens and slots would only grow together, and their costs could not be
separated; and steps of different K, which may run other CUDA graphs, would have no measured time.

The requests' tokens are drawn at random, so their drafts are no evidence about traffic: the law learns the steps, and
nothing is exported. vLLM's own counters count these requests.

If a step of a few requests takes longer than `SLOW_STEP_S`, a note says so, with what helps. Like the engine's other
notes it is in the log and in `GET /speculation`.

If sequences cannot be long enough for all settings, the requests end early and are sent again. Steps in which less than
half of the requests run are learned, but not counted for the setting.

A failure is logged as one warning, and step times are then learned from traffic:

- the engine's address does not resolve, or its certificate is not trusted here: calibration ends at once;
- the address does not answer within `START_S`;
- the engine refuses the request, for example because it needs an API key that the adapter does not have;
- no step runs within `ANSWER_S`.
"""

import http.client
import json
import logging
import os
import random
import select
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from specpilot.engine_adapter.evidence.request_acceptance import Starts
from specpilot.engine_adapter.plan.speculation_control import KTable, Source, fixed_table
from specpilot.policy.clean_text import secret
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.names import DEFAULT_CLASS

STEPS = 20
"""Measured steps of each setting. They give a mean within some per cent, in a fifth of a second."""

REQUESTS = 256
"""Largest number of running requests of a calibration; step times above are extrapolated until there is traffic."""

PROMPT = 16
"""Tokens of each prompt of a calibration."""

SETTING_S = 10.0
"""Longest time of one setting, in seconds: if 20 steps take longer, the rest is learned from traffic."""

ANSWER_S = 5.0
"""Seconds without a step after which calibration is given up."""

START_S = 120.0
"""Seconds in which the engine's own address must answer, counted from when its model is loaded."""

SLOW_STEP_S = 0.25
"""Seconds. A longer step of at most `SLOW_REQUESTS` requests is reported. With the demo pair on two cores such a step
takes 5 to 20 ms in the number format that fits them, and 0.5 s and more with bfloat16 in software."""

SLOW_REQUESTS = 8

CLASS = "calibration"
"""The traffic class of the requests with another K than the rest."""

RANK_HEADER = "X-data-parallel-rank"
"""vLLM's header that names the rank for a request, counted among the ranks of the server."""

_POLL_S = 0.01

logger = logging.getLogger("vllm.specpilot")


class CalibrationError(Exception):
    """The engine cannot be measured, for the reason in the message."""


def loads(max_running: int) -> list[int]:
    """Return the numbers of running requests to measure on an engine that runs at most `max_running`."""
    most = min(max_running, REQUESTS)
    return [*(1 << octave for octave in range(most.bit_length() - 1)), most]


def settings(n: int, k_max: int) -> list[tuple[int, int]]:
    """Return the settings for `n` requests: for each, K of the first half of the requests and K of the others."""
    mixed = [(k_max, min(1, k_max - 1))] if n > 1 else []
    return list(dict.fromkeys([(0, 0), (k_max, k_max), (max(1, k_max // 3), max(1, k_max // 3)), *mixed]))


def calibrating(k: int, others: int | None = None) -> KTable:
    """Return the table of a setting: `k` for all requests, `others` for those of `CLASS`."""
    return fixed_table({DEFAULT_CLASS: k, CLASS: k if others is None else others}, Source.CALIBRATING)


class Calibration:
    """Measures the steps of the engine of `scheduler`, which listens at `url`, for at most `limit_s` seconds.

    `rank`: its number among the data-parallel ranks of the server at `url`; `None`: it is alone there.
    """

    def __init__(self, scheduler: Any, url: str, limit_s: float, rank: int | None = None) -> None:
        self._scheduler = scheduler
        self._control = scheduler.control
        self._url = urlsplit(url)
        self._limit_s = limit_s
        self._headers = {"Content-Type": "application/json"}
        if rank is not None:
            self._headers[RANK_HEADER] = str(rank)
        self._slowest = (0.0, 0, 0)  # seconds, requests, K

    def run(self, stopped: threading.Event) -> None:
        """Measure until all settings are done, `limit_s` is over, or `stopped`; log a failure and return."""
        if self._control.k_max == 0 or self._limit_s == 0:
            return
        began = time.monotonic()
        try:
            self._await_server(stopped)
            self._control.calibrating = calibrating(0)
            deadline, measured = time.monotonic() + self._limit_s, []
            for n in loads(self._control.max_running):
                if not self._measure(n, deadline, stopped):
                    break
                measured.append(n)
        except (CalibrationError, InvalidDocumentError, OSError, http.client.HTTPException) as error:
            logger.warning("SpecPilot: step times are learned from traffic, this engine was not calibrated: %s", error)
        else:
            logger.info(
                "SpecPilot: step times calibrated in %.1f s with up to %d requests running",
                time.monotonic() - began,
                max(measured, default=0),
            )
            self._note_slow_steps()
        finally:
            self._leave(stopped)

    def _note_slow_steps(self) -> None:
        seconds, n, k = self._slowest
        if seconds > SLOW_STEP_S:
            note = (
                f"steps are slow: {1e3 * seconds:.0f} ms with {n} running at K = {k}, more than "
                f"{1e3 * SLOW_STEP_S:.0f} ms; give the engine cores that no other program uses, a number format that "
                "the processor multiplies in hardware (--dtype), or a smaller model"
            )
            self._scheduler.notes.append(note)
            logger.warning("SpecPilot: %s", note)

    def _leave(self, stopped: threading.Event) -> None:
        """End the calibration's K when none of its requests runs; before that its drafts would count as users'."""
        self._control.calibrating = calibrating(0)
        until = time.monotonic() + ANSWER_S
        while self._scheduler.has_unfinished_requests() and time.monotonic() < until and not stopped.is_set():
            time.sleep(_POLL_S)
        self._scheduler.meter.take_evidence()
        self._scheduler.meter.take_steps()
        self._scheduler.steps.starts = Starts()
        self._control.calibrating = None

    def _measure(self, n: int, deadline: float, stopped: threading.Event) -> bool:
        """Measure the steps of `n` running requests; return whether the time was enough for every setting."""
        others = n // 2
        with self._requests(n - others, DEFAULT_CLASS) as first, self._requests(others, CLASS) as second:
            for k, k_others in settings(n, self._control.k_max):
                self._control.calibrating = calibrating(k, k_others)
                until = min(deadline, time.monotonic() + SETTING_S)
                measured = self._take_steps(n, (first, second), until, stopped)
                if measured and n <= SLOW_REQUESTS:
                    self._slowest = max(self._slowest, (statistics.median(measured), n, k))
                if len(measured) < STEPS:
                    return False
        while self._scheduler.has_unfinished_requests() and time.monotonic() < deadline and not stopped.is_set():
            time.sleep(_POLL_S)
        return True

    def _take_steps(
        self, n: int, batches: Sequence["_Batch"], until: float, stopped: threading.Event
    ) -> Sequence[float]:
        """Wait for `STEPS` steps of a setting with `n` requests, or `until`; return their seconds."""
        began, measured = time.monotonic(), list[float]()
        while len(measured) < STEPS and not stopped.is_set():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now > until:
                break
            steps = self._scheduler.meter.take_steps()
            self._scheduler.law.learn(steps)
            measured += [seconds for shape, seconds, _ in steps if 2 * shape.decodes >= n and not shape.read]
            for batch in batches:
                batch.go_on()
            if not measured and now - began > ANSWER_S:
                raise CalibrationError(f"no step ran within {ANSWER_S:.0f} s")
        return measured

    @contextmanager
    def _requests(self, count: int, label: str) -> Iterator["_Batch"]:
        """Run `count` requests; they end with their connection."""
        path, body = f"{self._url.path.rstrip('/')}/v1/completions", self._body(count, label)
        batch = _Batch(self._connection(), path, self._headers, body)
        try:
            if count:
                batch.send()
            yield batch
        finally:
            batch.connection.close()

    def _body(self, count: int, label: str) -> bytes:
        config = self._scheduler.vllm_config.model_config
        size, room = config.get_vocab_size(), config.max_model_len - PROMPT - self._control.k_max
        draw = random.Random(f"{label} {count}")  # noqa: S311 - no secret
        # Special tokens are at both ends of a vocabulary.
        prompts = [
            [draw.randrange(size // 4, max(size // 2, size // 4 + 1)) for _ in range(PROMPT)] for _ in range(count)
        ]
        steps = STEPS * (len(settings(count, self._control.k_max)) + 1)
        body = {
            "model": self._control.model,
            "prompt": prompts,
            "max_tokens": max(1, min(room, steps * (1 + self._control.k_max))),
            "temperature": 0.0,
            "ignore_eos": True,
            "vllm_xargs": {"traffic_class": label},
        }
        return json.dumps(body).encode()

    def _await_server(self, stopped: threading.Event) -> None:
        deadline = time.monotonic() + START_S
        while not stopped.is_set():
            connection = self._connection()
            try:
                connection.request("GET", f"{self._url.path.rstrip('/')}/health")
                if connection.getresponse().status == HTTPStatus.OK:
                    return
                reason = "its /health does not answer 200"
            except (socket.gaierror, ssl.SSLError) as error:  # waiting would not help, and would delay the engine
                raise CalibrationError(
                    f"{self._url.geturl()} cannot be reached from within the engine ({error})"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                reason = str(error)
            finally:
                connection.close()
            if time.monotonic() > deadline:
                raise CalibrationError(f"{self._url.geturl()} cannot be reached from within the engine ({reason})")
            stopped.wait(0.1)

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port, timeout=ANSWER_S)


class _Batch:
    """Requests of one HTTP call, sent again when they have ended."""

    def __init__(
        self, connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.connection = connection
        self._path = path
        self._headers = headers
        self._body = body
        self._answers = select.poll()

    def send(self) -> None:
        """Send the call."""
        key = os.environ.get("VLLM_API_KEY") and secret("VLLM_API_KEY", os.environ["VLLM_API_KEY"])
        with_key = {"Authorization": f"Bearer {key}"} if key else {}
        self.connection.request("POST", self._path, self._body, {**self._headers, **with_key})
        self._answers = select.poll()
        self._answers.register(self.connection.sock, select.POLLIN)

    def go_on(self) -> None:
        """Send the call again if it was answered; raise `CalibrationError` if it was refused."""
        if self._answers.poll(0):
            answer = self.connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise CalibrationError(f"its /v1/completions answered {answer.status}")
            answer.read()
            self.send()

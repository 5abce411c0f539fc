"""Step times before traffic: an engine that has just started runs requests of its own, and counts what its steps take.

Without this the control law would learn what a K costs from users' requests: in the first seconds at each load it would
choose by a cost that was measured at another one. It takes seconds, ends before the engine registers, and goes through
the engine's own HTTP API, so whatever a step does for a user it does here.

For each number of running requests, powers of two up to `max_num_seqs`, four settings follow one another while the same
requests run: K = 0, K_max, a middle K, and half of the requests at K_max with the others at K = 1, without which tokens
verified and slots laid out would only ever be seen to grow together.

The requests' tokens are drawn at random, so their drafts say nothing about traffic: of what the engine counts meanwhile
only the steps are exported. vLLM's own counters do count these requests.

Where a sequence may not be long enough for all settings the requests end early, and are sent anew. Steps in which less
than half of them run are exported, but do not count for the setting.

Failures, by name: the engine's address has no name server's answer or no certificate that is trusted here (both at
once), does not answer, refuses the request (an API key that the adapter does not know) or runs no step -> one warning,
and step times are learned from traffic.
"""

import http.client
import json
import logging
import os
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.agent.tuning import (
    CALIBRATION_ANSWER_S,
    CALIBRATION_PROMPT,
    CALIBRATION_REQUESTS,
    CALIBRATION_SETTING_S,
    CALIBRATION_START_S,
    CALIBRATION_STEPS,
)
from specpilot.engine_adapter.evidence.acceptance import Priors
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.plan.speculation_control import calibration_table
from specpilot.policy.types import DEFAULT_CLASS

logger = logging.getLogger("vllm.specpilot")
CLASS = "calibration"
"""The traffic class of those requests whose K differs from the others'."""
_POLL_S = 0.01


class CalibrationError(Exception):
    """The engine cannot be measured; the message says why."""


def loads(max_running: int) -> list[int]:
    """Return the numbers of running requests that are measured on an engine which runs at most `max_running`."""
    most = min(max_running, CALIBRATION_REQUESTS)
    return [*(1 << octave for octave in range(most.bit_length() - 1)), most]


def settings(n: int, k_max: int) -> list[tuple[int, int]]:
    """Return, for each setting that is measured with `n` requests, K of the first half of them and of the others."""
    mixed = [(k_max, 1)] if n > 1 else []
    return list(dict.fromkeys([(0, 0), (k_max, k_max), (max(1, k_max // 3), max(1, k_max // 3)), *mixed]))


class Calibration:
    """Measures the steps of the engine that `scheduler` belongs to, which answers at `url`, for `limit_s` at most."""

    def __init__(self, scheduler: Any, exporter: MetricsExporter, url: str, limit_s: float) -> None:
        self._scheduler = scheduler
        self._control = scheduler.control
        self._exporter = exporter
        self._url = urlsplit(url)
        self._limit_s = limit_s

    def run(self, stopped: threading.Event) -> None:
        """Measure, until done, `limit_s` is over or `stopped`; on a failure say so and return."""
        if self._control.k_max == 0 or self._limit_s == 0:
            return
        began = time.monotonic()
        try:
            self._await_server(stopped)
            self._control.calibrating = calibration_table(0, {})
            deadline, measured = time.monotonic() + self._limit_s, []
            for n in loads(self._control.max_running):
                if not self._measure(n, deadline, stopped):
                    break
                measured.append(n)
        except (CalibrationError, OSError, http.client.HTTPException) as error:
            logger.warning("SpecPilot: step times are learned from traffic, this engine was not calibrated: %s", error)
        else:
            logger.info(
                "SpecPilot: step times calibrated in %.1f s with up to %d requests running",
                time.monotonic() - began,
                max(measured, default=0),
            )
        finally:
            self._leave(stopped)

    def _leave(self, stopped: threading.Event) -> None:
        """Give K back, once no request of the calibration runs any more: its drafts would count as users'."""
        self._control.calibrating = calibration_table(0, {})
        until = time.monotonic() + CALIBRATION_ANSWER_S
        while self._scheduler.has_unfinished_requests() and time.monotonic() < until and not stopped.is_set():
            time.sleep(_POLL_S)
        self._scheduler.meter.take()
        self._scheduler.meter.take_steps()
        self._scheduler.steps.priors = Priors()
        self._control.calibrating = None

    def _measure(self, n: int, deadline: float, stopped: threading.Event) -> bool:
        """Measure the steps of `n` running requests; return whether the time sufficed for every setting."""
        others = n // 2
        with self._requests(n - others, DEFAULT_CLASS) as first, self._requests(others, CLASS) as second:
            for k, k_others in settings(n, self._control.k_max):
                self._control.calibrating = calibration_table(k, {CLASS: k_others})
                until = min(deadline, time.monotonic() + CALIBRATION_SETTING_S)
                if not self._take_steps(n, (first, second), until, stopped):
                    return False
        while self._scheduler.has_unfinished_requests() and time.monotonic() < deadline and not stopped.is_set():
            time.sleep(_POLL_S)
        return True

    def _take_steps(self, n: int, batches: Sequence["_Batch"], until: float, stopped: threading.Event) -> bool:
        """Wait for the steps of a setting with `n` requests and export them; return whether there were enough."""
        began, count, found = time.monotonic(), 0, Evidence()
        while count < CALIBRATION_STEPS and not stopped.is_set():
            time.sleep(_POLL_S)
            now = time.monotonic()
            if now > until:
                break
            found = self._scheduler.meter.take()
            self._scheduler.law.learn(self._scheduler.meter.take_steps())
            count += sum(sums.steps for sums in found.cells.values() if 2 * sums.decodes >= n * sums.steps)
            self._exporter.add(replace(Evidence(), cells=found.cells, catch_ups=found.catch_ups))
            for batch in batches:
                batch.go_on()
            if count == 0 and now - began > CALIBRATION_ANSWER_S:
                raise CalibrationError(f"no step ran within {CALIBRATION_ANSWER_S:.0f} s")
        return count >= CALIBRATION_STEPS

    @contextmanager
    def _requests(self, count: int, label: str) -> Iterator["_Batch"]:
        """Have so many requests run, which end with their connection."""
        batch = _Batch(self._connection(), f"{self._url.path.rstrip('/')}/v1/completions", self._body(count, label))
        try:
            if count:
                batch.send()
            yield batch
        finally:
            batch.connection.close()

    def _body(self, count: int, label: str) -> bytes:
        config = self._scheduler.vllm_config.model_config
        size, room = config.get_vocab_size(), config.max_model_len - CALIBRATION_PROMPT - self._control.k_max
        draw = random.Random(f"{label} {count}")  # noqa: S311 - no secret
        # Special tokens lie at either end of a vocabulary.
        prompts = [
            [draw.randrange(size // 4, max(size // 2, size // 4 + 1)) for _ in range(CALIBRATION_PROMPT)]
            for _ in range(count)
        ]
        steps = CALIBRATION_STEPS * (len(settings(count, self._control.k_max)) + 1)
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
        deadline = time.monotonic() + CALIBRATION_START_S
        while not stopped.is_set():
            connection = self._connection()
            try:
                connection.request("GET", f"{self._url.path.rstrip('/')}/health")
                if connection.getresponse().status == HTTPStatus.OK:
                    return
                reason = "its /health does not answer 200"
            except (socket.gaierror, ssl.SSLError) as error:  # waiting mends neither, and would hold up the engine
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
        return kind(self._url.hostname or "", self._url.port, timeout=CALIBRATION_ANSWER_S)


class _Batch:
    """Requests of one HTTP call, sent anew when they have ended."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> None:
        self.connection = connection
        self._path = path
        self._body = body
        self._answers = select.poll()

    def send(self) -> None:
        """Send the call."""
        key = os.environ.get("VLLM_API_KEY")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.connection.request("POST", self._path, self._body, headers)
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

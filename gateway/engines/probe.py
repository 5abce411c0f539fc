"""Probes each engine by `GET /v1/models`.

Probes have three purposes: they read the models of an engine that did not register in Redis, they return an ejected
engine to service, and they eject an engine that hangs or has stopped before a client's request fails there. A short
bound on the first byte would not do: behind a queue a first token takes minutes, and a retry doubles the work.

| outcome of a probe | effect |
|---|---|
| a good answer | the models are updated; an ejection whose time is over ends |
| an answer that cannot be used (a status, no JSON) | it is logged |
| no answer in time, but bytes of another response came meanwhile | it is logged |
| no answer in time and no other byte, or nothing listens | it is logged and counts against the engine |
| an answer, but by the engine's record its model completes no step | as no answer in time |

An engine under suspicion (see `gateway.routing.outlier_detection`) is asked for `/health` at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from specpilot.gateway.engines.fetch import UnreachableError, fetch
from specpilot.gateway.engines.fleet import Engine, Fleet
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.policy.names import is_model_name

PROBE_CHECK_S: Final = 0.25
"""Seconds between two searches for engines that are due, and so the least time between two probes of an ejected
engine."""

PROBE_UNKNOWN_S: Final = 1.0
"""Seconds between probes of an engine that has not answered: the delay until a new engine serves."""

PROBE_S: Final = 3.0
"""Seconds between probes of an engine that answers: with `PROBE_TIMEOUT_S`, the delay until a hung engine is
ejected."""

MODELS_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the largest list of models that is read."""

PROBE_TIMEOUT_S: Final = 3.0
"""Seconds in which an engine must answer a probe. With a smaller value busy engines are ejected; with a larger one hung
engines stay in service longer."""

STOOD_STILL_S: Final = 0.25
"""A time-out that fires this many seconds late means that this process was blocked. It does not count against the
engine."""

_log = logging.getLogger(__name__)
_PATH = b"/v1/models"
_HEALTH = b"/health"
_REFUSED = (
    "%s serves models that clients cannot ask for by name: %s; give each a name of 1 to 256 printable characters "
    "without a space at its ends (vLLM: --served-model-name)"
)


async def fetch_models(engine: Engine, timeout_s: float) -> tuple[Mapping[str, Any], ...]:
    """Return the entries of `engine`'s `/v1/models`. Entries whose names cannot be used are left out and logged.

    Raises `OSError` (time-outs included) when there is no usable list.
    """
    text = await fetch(engine, _PATH, b"application/json", MODELS_BYTES, timeout_s)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OSError("its list of models is not JSON") from error
    cards = document.get("data") if isinstance(document, dict) else None
    if not isinstance(cards, list):
        raise OSError("its list of models has no data")
    good: list[Mapping[str, Any]] = []
    bad: list[str] = []
    for card in cards:
        name = card.get("id") if isinstance(card, dict) else None
        if isinstance(name, str) and is_model_name(name):
            good.append(card)
        else:
            bad.append(repr(name)[:300])
    if bad != engine.refused_models:
        engine.refused_models = bad
        if bad:
            _log.error(_REFUSED, engine.engine_id, ", ".join(bad))
    return tuple(good)


class Probe:
    """Keeps the models and the ejections of the fleet up to date."""

    def __init__(
        self,
        fleet: Fleet,
        monotonic: Callable[[], float],
        ejected: Callable[[Engine], None],
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        """`ejected` is called with each engine that a probe ejects."""
        self._fleet = fleet
        self._monotonic = monotonic
        self._ejected = ejected
        self._timeout_s = timeout_s
        self._probing: set[Engine] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Probe each engine when it is due, until cancelled."""
        while True:
            now = self._monotonic()
            for engine in [*self._fleet.engines.values()]:
                if engine not in self._probing and self._is_due(engine, now):
                    self._probing.add(engine)
                    task = asyncio.get_running_loop().create_task(self._probe(engine))
                    self._tasks.add(task)  # the loop itself keeps only a weak reference
                    task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(PROBE_CHECK_S)

    async def once(self) -> None:
        """Probe every engine once, all at the same time."""
        await asyncio.gather(*(self._probe(engine) for engine in self._fleet.engines.values()))

    def _is_due(self, engine: Engine, now: float) -> bool:
        if engine.probed_at is None or engine.outlier_detection.is_suspect:
            return True
        if engine.outlier_detection.is_ejected:
            return now >= max(engine.outlier_detection.ejected_until, engine.probed_at + PROBE_CHECK_S)
        is_steady = engine.cards is not None and not engine.outlier_detection.probe_timeouts
        return now - engine.probed_at >= (PROBE_S if is_steady else PROBE_UNKNOWN_S)

    async def _probe(self, engine: Engine) -> None:
        engine.probed_at = self._monotonic()
        try:
            if engine.outlier_detection.is_suspect:
                await self._settle(engine)
            cards = await fetch_models(engine, self._timeout_s)
            if engine.is_stalled:
                raise TimeoutError("its model has completed no step for long")
        except OSError as error:
            self._failed(engine, error)
            reason = str(error) or type(error).__name__
            if reason != engine.probe_error:
                engine.probe_error = reason
                _log.warning("%s does not list its models, probing on: %s", engine.engine_id, reason)
            return
        finally:
            self._probing.discard(engine)
        engine.probe_error = None
        engine.outlier_detection.probe_timeouts = 0
        now = self._monotonic()
        if engine.outlier_detection.is_ejected and now >= engine.outlier_detection.ejected_until:
            engine.outlier_detection.restore(now)
        if cards != engine.cards:
            engine.cards = cards
            self._fleet.index()

    async def _settle(self, engine: Engine) -> None:
        """Check by `/health` whether an engine under suspicion is at fault."""
        try:
            await fetch(engine, _HEALTH, b"*/*", MODELS_BYTES, self._timeout_s)
        except OutOfFilesError:
            return
        except OSError as error:
            reason = str(error) or type(error).__name__
            _log.warning("%s is ejected: it fails requests, and /health fails: %s", engine.engine_id, reason)
            engine.outlier_detection.settle(self._monotonic(), is_healthy=False)
            self._ejected(engine)
        else:
            engine.outlier_detection.settle(self._monotonic(), is_healthy=True)

    def _failed(self, engine: Engine, error: OSError) -> None:
        now, outlier_detection = self._monotonic(), engine.outlier_detection
        is_silent = isinstance(error, TimeoutError)
        began_at = engine.probed_at or now
        if isinstance(error, OutOfFilesError):
            return  # this process is at fault
        if is_silent and (now - began_at > self._timeout_s + STOOD_STILL_S or engine.heard_at > began_at):
            return  # this process was blocked, or another response came from the engine
        if outlier_detection.is_ejected:
            outlier_detection.eject(now)
        elif (is_silent or isinstance(error, UnreachableError)) and engine.cards is not None:
            is_connect = not is_silent
            if outlier_detection.fail_probe(now, is_connect=is_connect):
                _log.warning("%s is ejected: it does not answer its probes", engine.engine_id)
                self._ejected(engine)

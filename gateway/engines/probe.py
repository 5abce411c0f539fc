"""Asks each engine for `/v1/models`.

To know what an engine serves that did not say so in Redis, to see whether an ejected engine is back, and to eject one
that hangs or is gone, so that no user's request has to find out. Only silence counts against an engine, and none is
silent that sends any response meanwhile: an answer that cannot be used (a status, no JSON) is logged. An engine whose
server answers while its model stands still, by its own record, counts as silent.

An engine suspected of failures that may be one client's own fault is asked for `/health`, at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from specpilot.gateway.engines.fetch import UnreachableError, fetch
from specpilot.gateway.engines.fleet import Engine, Fleet
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.policy.types import is_model_name

PROBE_CHECK_S: Final = 0.25
"""Seconds between two looks at who is due, and so between two probes of an ejected engine at least."""

PROBE_UNKNOWN_S: Final = 1.0
"""Seconds between probes of an engine that has not answered: how soon a new one serves."""

PROBE_S: Final = 3.0
"""Seconds between probes of an engine that answers: with `PROBE_TIMEOUT_S`, how soon a hung engine is ejected."""

MODELS_BYTES: Final = 4 * 1024 * 1024
"""A longer list of models is no list of models."""

PROBE_TIMEOUT_S: Final = 3.0
"""Seconds that an engine gets to answer a probe: less ejects a busy one, more lets a hung one serve on."""

STOOD_STILL_S: Final = 0.25
"""A time-out that comes so much too late says more of this process than of the engine."""

_log = logging.getLogger(__name__)
_PATH = b"/v1/models"
_HEALTH = b"/health"
_REFUSED = (
    "%s serves models that clients cannot ask for by name: %s; give each a name of 1 to 256 printable characters "
    "without a space at its ends (vLLM: --served-model-name)"
)


async def fetch_models(engine: Engine, timeout_s: float) -> tuple[Mapping[str, Any], ...]:
    """Return what `engine` says it serves, without names that cannot be used, which are logged.

    Raises `OSError` (time-outs included) when it does not say.
    """
    text = await fetch(engine, _PATH, b"application/json", MODELS_BYTES, timeout_s)
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OSError("its list of models is not JSON") from error
    cards = found.get("data") if isinstance(found, dict) else None
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
    """Keeps what the fleet serves up to date."""

    def __init__(
        self,
        fleet: Fleet,
        monotonic: Callable[[], float],
        ejected: Callable[[Engine], None],
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        """`ejected` is called with an engine that a probe has ejected."""
        self._fleet = fleet
        self._monotonic = monotonic
        self._ejected = ejected
        self._timeout_s = timeout_s
        self._probing: set[Engine] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ask for ever whoever is due."""
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
        """Ask everybody once, at the same time."""
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
                raise TimeoutError("its model has ended no step for long")
        except OSError as error:
            self._failed(engine, error)
            said = str(error) or type(error).__name__
            if said != engine.probe_error:
                engine.probe_error = said
                _log.warning("%s does not say what it serves, asking on: %s", engine.engine_id, said)
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
        """Find out whether a suspected engine is at fault."""
        try:
            await fetch(engine, _HEALTH, b"*/*", MODELS_BYTES, self._timeout_s)
        except OutOfFilesError:
            return
        except OSError as error:
            said = str(error) or type(error).__name__
            _log.warning("%s is ejected: it fails requests, and %s says %s", engine.engine_id, _HEALTH.decode(), said)
            engine.outlier_detection.settle(self._monotonic(), is_healthy=False)
            self._ejected(engine)
        else:
            engine.outlier_detection.settle(self._monotonic(), is_healthy=True)

    def _failed(self, engine: Engine, error: OSError) -> None:
        now, outlier_detection = self._monotonic(), engine.outlier_detection
        is_silent = isinstance(error, TimeoutError)
        began_at = engine.probed_at or now
        if isinstance(error, OutOfFilesError):
            return
        if is_silent and (now - began_at > self._timeout_s + STOOD_STILL_S or engine.heard_at > began_at):
            return
        if outlier_detection.is_ejected:
            outlier_detection.eject(now)
        elif (is_silent or isinstance(error, UnreachableError)) and engine.cards is not None:
            is_connect = not is_silent
            if outlier_detection.fail_probe(now, is_connect=is_connect):
                _log.warning("%s is ejected: it does not answer its probes", engine.engine_id)
                self._ejected(engine)

"""Reads each engine's counters of speculative decoding, all engines at the same time."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from specpilot.gateway.engines.fetch import fetch
from specpilot.gateway.engines.fleet import Engine, Fleet
from specpilot.gateway.wire.spec_decode import Reading, parse

TIMEOUT_S: Final = 2.0
"""Seconds in which an engine must answer. Until it is ejected, a hung engine delays `/metrics` by this time."""

METRICS_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the largest exposition that is read. vLLM's has some 100 kB a model."""

_log = logging.getLogger(__name__)
_PATH = b"/metrics"


async def read_counters(fleet: Fleet, monotonic: Callable[[], float]) -> list[Reading]:
    """Return one reading for each engine that answers and has these counters. Ejected engines are not asked."""

    async def read(engine: Engine) -> Reading | None:
        began_at = monotonic()
        try:
            text = await fetch(engine, _PATH, b"text/plain", METRICS_BYTES, TIMEOUT_S)
        except OSError as error:
            _log.debug("the counters of %s cannot be read: %s", engine.engine_id, str(error) or type(error).__name__)
            return None
        counts = await asyncio.to_thread(parse, text)
        return Reading(engine.url, began_at, monotonic(), counts) if counts else None

    engines = [engine for engine in fleet.engines.values() if not engine.outlier_detection.is_ejected]
    readings = await asyncio.gather(*(read(engine) for engine in engines))
    return [reading for reading in readings if reading is not None]

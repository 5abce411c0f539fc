"""Methods on vLLM's `EngineCore` for the API server: report the state, apply a schedule, begin to drain.

The API server's process calls them by name (`agent.endpoint`, `agent.draining`); `engine_adapter.plugin` adds them to
the class. vLLM runs them between two steps, so a schedule is never applied within a step.
"""

import json
import time
from typing import Any

from specpilot.engine_adapter.errors import ScheduleRefusedError
from specpilot.engine_adapter.evidence.request_acceptance import TEMPERATURE_RANGES
from specpilot.policy.bands import BAND_EDGES, band_of
from specpilot.policy.codec import from_plain, to_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.schedule import Schedule

STATE_METHOD = "specpilot_state"
"""The name of `state` on vLLM's `EngineCore`."""

APPLY_METHOD = "specpilot_apply"
"""The name of `apply` on vLLM's `EngineCore`."""

DRAIN_METHOD = "specpilot_drain"
"""The name of `drain` on vLLM's `EngineCore`."""


def state(core: Any) -> str:
    """Return the engine's state as JSON; `null` when its scheduler is not the adapter's."""
    control = getattr(core.scheduler, "control", None)
    if control is None:
        return json.dumps(None)
    now = time.monotonic()
    schedule, override = control.schedule, control.override(now)
    return json.dumps(
        {
            "engine_id": control.engine_id,
            "model": control.model,
            "pool": control.pool,
            "k_max": control.k_max,
            "static_k": control.static_k,
            "max_running": control.max_running,
            "source": control.source(now),
            "override": to_plain(override) if override is not None else None,
            "version": control.version,
            "age_s": control.age_s(now),
            "schedule": to_plain(schedule) if schedule is not None else None,
            "bands": _bands(core.scheduler),
            "law": core.scheduler.law.described(),
            "notes": list(core.scheduler.notes),
        }
    )


def _bands(scheduler: Any) -> dict[str, Any]:
    """Return the bands of the running requests, with their scheduled K, and the bands in which new ones start."""
    return {
        "edges": BAND_EDGES,
        "running": [
            {"class": name, "band": band, "k": k, "requests": count}
            for (name, band, k), count in sorted(scheduler.running_decodes.items())
        ],
        "begin": [
            {
                "class": kind.traffic_class,
                "temperature": TEMPERATURE_RANGES[kind.temperature],
                "structured": kind.is_structured,
                "acceptance": round(acceptance, 3),
                "band": band_of(acceptance),
            }
            for kind, acceptance in sorted(scheduler.steps.starts.known().items())
        ],
    }


def apply(core: Any, text: str) -> str:
    """Apply the schedule in the JSON `text`.

    Defaults of missing fields: the engine's own `model` and `pool`, the next `version`, issued now; in `guidance` those
    of the engine that adapts alone.
    Returns the new state, or `{"error": {"status", "code", "message"}}`; `null` as for `state`.
    """
    control = getattr(core.scheduler, "control", None)
    if control is None:
        return json.dumps(None)
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            return _error(422, "invalid_document", "the body must be a JSON object with 'guidance'")
        filled = {
            "model": control.model,
            "pool": control.pool,
            "version": control.version + 1,
            "issued_at": time.time(),
            **document,
        }
        if isinstance(guidance := document.get("guidance"), dict):
            filled["guidance"] = to_plain(control.own_guidance) | guidance
        control.offer(from_plain(Schedule, filled), time.monotonic())
    except json.JSONDecodeError as error:
        return _error(400, "invalid_json", f"the body is not JSON: {error}")
    except InvalidDocumentError as error:
        return _error(422, error.code, str(error))
    except ScheduleRefusedError as error:
        return _error(error.status, error.code, str(error))
    return state(core)


def drain(core: Any) -> str:
    """Mark the engine as draining, for all gateways; may be called again.

    Returns whether requests run, as JSON; `null` when the scheduler is not the adapter's.
    """
    begin_drain = getattr(core.scheduler, "begin_drain", None)
    if begin_drain is None:
        return json.dumps(None)
    begin_drain()
    return json.dumps(bool(core.scheduler.has_unfinished_requests()))


def _error(status: int, code: str, message: str) -> str:
    return json.dumps({"error": {"status": status, "code": code, "message": message}})

"""vLLM's general plugin: what every process of an engine loads.

vLLM loads it wherever the package is installed, also for engines that do not use the adapter. So what it installs lets
engines with other schedulers be, but for the repair; and on a version of vLLM that was not tested it leaves vLLM as it
is: an engine with the adapter's scheduler refuses to start there by itself.

Installs the drafter's width, cheap steps without drafts and a repair that CPUs need, and adds to `EngineCore` the two
methods that the control route calls. vLLM runs such methods between two steps, so a schedule is applied whole, never in
the middle of one.
"""

import json
import time
from typing import Any

from pydantic import ValidationError

from engine_adapter import compat
from engine_adapter.errors import ScheduleRefusedError, UnsupportedEngineError
from engine_adapter.settings import AdapterSettings
from policy.codec import decode, to_plain
from policy.errors import InvalidDocumentError
from policy.types import Schedule

STATE_METHOD = "specpilot_state"
APPLY_METHOD = "specpilot_apply"


def register() -> None:
    """Entry point `vllm.general_plugins`; harmless when called again."""
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - vLLM imports this module while it starts

    setattr(EngineCore, STATE_METHOD, _state)
    setattr(EngineCore, APPLY_METHOD, _apply)
    if not _is_fit():
        return
    from engine_adapter import backlog, cpu_sampling, drafter, undrafted  # noqa: PLC0415 - import torch

    backlog.install()
    cpu_sampling.install()
    drafter.install()
    undrafted.install()


def _is_fit() -> bool:
    """Whether this vLLM may be changed; one that the adapter cannot make out is left alone."""
    try:
        return AdapterSettings().any_vllm or compat.is_tested(compat.vllm_version())
    except (UnsupportedEngineError, ValidationError):
        return False


def _state(core: Any) -> str:
    """Return what the engine applies now, as JSON; `null` when its scheduler is not the adapter's."""
    control = getattr(core.scheduler, "control", None)
    if control is None:
        return json.dumps(None)
    now = time.monotonic()
    table = control.table(now)
    schedule = control.schedule
    return json.dumps(
        {
            "model": control.model,
            "pool": control.pool,
            "k_max": control.k_max,
            "static_k": control.static_k,
            "max_running": control.max_running,
            "source": table.source,
            "version": control.version,
            "age_s": control.age_s(now),
            "schedule": to_plain(schedule) if schedule is not None else None,
        }
    )


def _apply(core: Any, text: str) -> str:
    """Apply the schedule that the JSON `text` states, from the next step on.

    What is missing is filled in: the engine's own `model` and `pool`, the next `version`, now, an hour, no probes.
    Returns the new state, or `{"error": {"status", "code", "message"}}`.
    """
    control = getattr(core.scheduler, "control", None)
    if control is None:
        return _error(501, "adapter_missing", "start vLLM with specpilot's --scheduler-cls to steer K")
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            return _error(422, "invalid_document", "the body must be a JSON object with 'classes'")
        filled = {
            "model": control.model,
            "pool": control.pool,
            "version": control.version + 1,
            "issued_at": time.time(),
            "valid_for_s": 3600.0,
            "probe_ratio": 0.0,
            **document,
        }
        control.offer(decode(Schedule, json.dumps(filled)), time.monotonic())
    except json.JSONDecodeError as error:
        return _error(400, "invalid_json", f"the body is not JSON: {error}")
    except InvalidDocumentError as error:
        return _error(422, error.code, str(error))
    except ScheduleRefusedError as error:
        return _error(error.status, error.code, str(error))
    return _state(core)


def _error(status: int, code: str, message: str) -> str:
    return json.dumps({"error": {"status": status, "code": code, "message": message}})

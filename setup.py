"""Compiles what every relayed request passes through, when asked to; everything else is in pyproject.toml.

With SPECPILOT_COMPILE=1 the modules below become C by mypyc: the same source, checked by the same type checker, in half
the CPU time. Without it the distribution is plain Python, which is what an editable checkout should be: a compiled
module would hide the source that somebody just changed.

What is made for every request or event is a plain class there, not a dataclass: the initialiser that `dataclass` writes
stays interpreted, and takes more time than the rest of the value's life.
"""

import os

from setuptools import setup

HOT_PATH = (
    "specpilot/gateway/limits/admission.py",
    "specpilot/gateway/routing/session.py",
    "specpilot/gateway/routing/chooser.py",
    "specpilot/gateway/routing/classify.py",
    "specpilot/gateway/routing/ceiling.py",
    "specpilot/gateway/routing/model_route.py",
    "specpilot/gateway/wire/response.py",
    "specpilot/gateway/wire/response_id.py",
    "specpilot/gateway/wire/routes.py",
    "specpilot/gateway/relay/engine_request.py",
    "specpilot/gateway/relay/exchange.py",
    "specpilot/gateway/relay/request_body.py",
    "specpilot/gateway/relay/stored_response.py",
    "specpilot/gateway/limits/fair_queue.py",
    "specpilot/gateway/engines/fleet.py",
    "specpilot/gateway/wire/framing.py",
    "specpilot/gateway/relay/client_reader.py",
    "specpilot/gateway/relay/client_connection.py",
    "specpilot/gateway/relay/connection_state.py",
    "specpilot/gateway/wire/heads.py",
    "specpilot/gateway/wire/request_target.py",
    "specpilot/gateway/relay/prepared_request.py",
    "specpilot/gateway/relay/request_decisions.py",
    "specpilot/gateway/relay/engine_choice.py",
    "specpilot/gateway/relay/attempt.py",
    "specpilot/gateway/relay/attempts.py",
    "specpilot/gateway/relay/accounting.py",
    "specpilot/gateway/relay/owner.py",
    "specpilot/gateway/wire/deadlines.py",
    "specpilot/gateway/telemetry/metrics.py",
    "specpilot/gateway/telemetry/cell.py",
    "specpilot/gateway/relay/context.py",
    "specpilot/gateway/routing/prefix.py",
    "specpilot/gateway/limits/rate_limit.py",
    "specpilot/gateway/telemetry/outcome.py",
    "specpilot/gateway/telemetry/recorder.py",
    "specpilot/gateway/relay/relay.py",
    "specpilot/gateway/routing/balance.py",
    "specpilot/gateway/routing/outlier_detection.py",
    "specpilot/gateway/routing/retry_budget.py",
    "specpilot/gateway/wire/event_frame.py",
    "specpilot/gateway/wire/sse.py",
    "specpilot/gateway/wire/usage.py",
    "specpilot/gateway/engines/upstream.py",
    "specpilot/gateway/wire/amendments.py",
    "specpilot/gateway/wire/body_fields.py",
    "specpilot/gateway/wire/json_members.py",
    "specpilot/gateway/wire/lax_values.py",
    "specpilot/gateway/wire/request_facts.py",
    "specpilot/gateway/wire/outline.py",
    "specpilot/gateway/wire/body_reader.py",
    "specpilot/policy/clock.py",
)

modules = []
if os.environ.get("SPECPILOT_COMPILE") == "1":
    from mypyc.build import mypycify

    modules = mypycify([*HOT_PATH], opt_level="3", strict_dunder_typing=True)
setup(ext_modules=modules)

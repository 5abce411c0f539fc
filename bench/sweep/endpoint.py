"""A sweep's calls of an endpoint besides completions: health, model, counters, and K."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request

from specpilot.bench.sweep import exposition
from specpilot.bench.sweep.spec_decode import SpecDecode
from specpilot.policy.http_client import open_url

TIMEOUT_S = 10.0
NOT_FOUND = 404


class EndpointError(RuntimeError):
    """An endpoint that does not answer, or answers like another kind of server."""


class RefusedError(EndpointError):
    """An engine with SpecPilot's adapter that rejects a call without its control token."""


def check_health(url: str) -> None:
    """Raise `EndpointError` unless the server's health is good."""
    _get(f"{url.rstrip('/')}/health")


def model_of(url: str, api_key: str | None = None) -> str:
    """Return the first model that the endpoint serves; raises `EndpointError`."""
    address = f"{url.rstrip('/')}/v1/models"
    try:
        return str(json.loads(_get(address, api_key))["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(f"{address} does not list models as OpenAI's API does; check the URL") from error


def counters(url: str) -> SpecDecode | None:
    """Return vLLM's counters of speculation; `None` when the endpoint has none."""
    try:
        return exposition.read(_get(f"{url.rstrip('/')}/metrics"))
    except (EndpointError, ValueError):
        return None


def acceptance_length(url: str) -> float | None:
    """Return the acceptance length of SGLang's last decode steps; `None` when the endpoint has none."""
    try:
        return exposition.acceptance_length(_get(f"{url.rstrip('/')}/metrics"))
    except (EndpointError, ValueError):
        return None


def speculation(url: str, control_token: str | None = None) -> dict[str, Any]:
    """Return the state of K of an engine with SpecPilot's adapter.

    Raises `RefusedError` when the engine needs another token than `control_token`, else `EndpointError`.
    """
    return _speculation(url, control_token)


def put_schedule(url: str, schedule: Mapping[str, Any], control_token: str | None = None) -> dict[str, Any]:
    """Put `schedule` to an engine, which applies it from its next step on; return its state of K.

    Raises as `speculation`.
    """
    return _speculation(url, control_token, schedule)


def _speculation(url: str, control_token: str | None, schedule: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`GET /speculation`, or `PUT` of a `schedule`."""
    body = None if schedule is None else json.dumps(schedule).encode()
    try:
        request = Request(f"{url.rstrip('/')}/speculation", method="GET" if body is None else "PUT", data=body)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if control_token:
            request.add_unredirected_header("Authorization", f"Bearer {control_token}")
        with open_url(request, timeout=TIMEOUT_S) as reply:
            return _state(json.loads(reply.read()))
    except HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")[:300]
        if (refusal := _refusal(text, has_token=bool(control_token))) is not None:
            raise RefusedError(f"{url} {refusal}") from error
        if error.code == NOT_FOUND:
            raise EndpointError(f"{url} has no /speculation, so it is no engine of SpecPilot's") from error
        action = "to name its K" if body is None else "a schedule"
        raise EndpointError(f"{url} refuses {action}: {error.code} {text}") from error
    except ValueError as error:
        raise EndpointError(f"{url} does not report the K in force, so it is no engine of SpecPilot's") from error
    except (OSError, HTTPException) as error:
        raise EndpointError(f"{url} does not answer: {getattr(error, 'reason', error)}") from error


def _refusal(answer: str, *, has_token: bool) -> str | None:
    """Return the remedy for a rejection that an engine's adapter sent as `answer`; `None` for any other answer."""
    if '"control_token_needed"' in answer:
        return (
            "rejects a change of K from here, because it has no control token: start it with "
            "SPECPILOT_ENGINE_CONTROL_TOKEN and give the same with --control-token, or with --trust-this-machine here"
        )
    if '"invalid_token"' not in answer:
        return None
    remedy = "it must be the engine's SPECPILOT_ENGINE_CONTROL_TOKEN"
    return f"refuses this --control-token: {remedy}" if has_token else f"wants --control-token to set K: {remedy}"


def _state(state: Any) -> dict[str, Any]:
    """Return `found` if it has the shape of the adapter's state; raises `ValueError`."""
    if not isinstance(state, dict) or not state.keys() >= {"k_max", "static_k", "source", "version", "schedule"}:
        raise ValueError("no state of an adapter")
    return state


def _get(address: str, api_key: str | None = None) -> str:
    try:
        request = Request(address)  # noqa: S310 - the address that the user gave
        if api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        with open_url(request, timeout=TIMEOUT_S) as reply:
            return str(reply.read().decode(errors="replace"))
    except HTTPError as error:
        raise EndpointError(f"{address} answers {error.code}; check the URL, without /v1") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise EndpointError(f"{address} does not answer: {getattr(error, 'reason', error)}") from error

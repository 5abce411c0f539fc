"""What a sweep asks an endpoint beside completions: is it there, which model, its counters, and which K."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from specpilot.bench.sweep import exposition
from specpilot.bench.sweep.spec_decode import SpecDecode

TIMEOUT_S = 10.0


class EndpointError(RuntimeError):
    """An endpoint that does not answer, or not as what it should be."""


def check_health(url: str) -> None:
    """Raise `EndpointError` when the server does not answer that it is well."""
    _get(f"{url.rstrip('/')}/health")


def model_of(url: str, api_key: str | None = None) -> str:
    """Return the first model that the endpoint serves; raises `EndpointError`."""
    address = f"{url.rstrip('/')}/v1/models"
    try:
        return str(json.loads(_get(address, api_key))["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(f"{address} does not list models as OpenAI's API does; check the URL") from error


def counters(url: str) -> SpecDecode | None:
    """Return vLLM's counters of speculation; `None` where the endpoint shows none."""
    try:
        return exposition.read(_get(f"{url.rstrip('/')}/metrics"))
    except (EndpointError, ValueError):
        return None


def speculation(url: str) -> dict[str, Any]:
    """Return what an engine with SpecPilot's adapter says of its K; raises `EndpointError`."""
    address = f"{url.rstrip('/')}/speculation"
    try:
        return _state(json.loads(_get(address)))
    except ValueError as error:
        raise EndpointError(f"{address} does not tell which K is in force") from error


def can_set_k(url: str) -> bool:
    """Whether the endpoint is an engine with SpecPilot's adapter."""
    try:
        speculation(url)
    except EndpointError:
        return False
    return True


def put_schedule(url: str, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Have an engine apply `schedule` from its next step on; return what it then says of its K.

    Raises `EndpointError`.
    """
    request = Request(f"{url.rstrip('/')}/speculation", method="PUT", data=json.dumps(schedule).encode())  # noqa: S310
    request.add_header("Content-Type", "application/json")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310 - the address that the user gave
            return _state(json.loads(reply.read()))
    except HTTPError as error:
        text = error.read().decode(errors="replace")[:300]
        raise EndpointError(f"{url} refuses a schedule: {error.code} {text}") from error
    except (URLError, OSError, HTTPException) as error:
        raise EndpointError(f"{url} does not answer: {getattr(error, 'reason', error)}") from error
    except ValueError as error:
        raise EndpointError(f"{url} does not tell which K is in force") from error


def _state(found: Any) -> dict[str, Any]:
    """Return `found` if it is what the adapter answers; raises `ValueError`."""
    if not isinstance(found, dict) or not found.keys() >= {"k_max", "static_k", "source", "version", "schedule"}:
        raise ValueError("no state of an adapter")
    return found


def _get(address: str, api_key: str | None = None) -> str:
    try:
        request = Request(address)  # noqa: S310 - the address that the user gave
        if api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        with urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            return str(reply.read().decode(errors="replace"))
    except HTTPError as error:
        raise EndpointError(f"{address} answers {error.code}; check the URL, without /v1") from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise EndpointError(f"{address} does not answer: {getattr(error, 'reason', error)}") from error

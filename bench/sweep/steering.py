"""K of one engine during a sweep: set before a cell, checked after it, and restored at the end.

A cell of an arm with a K counts only if the schedule that set it was in force from the first request to the last.
Versions only grow, so an engine with the same version before and after had no other one between. Another version comes
from a controller (it renews its schedule every few seconds), or from a restart of the engine. An engine that has just
started may first measure its own steps, at its own choice of K; the sweep waits for the end of this.

Restored is the guidance that was in force before; for an engine without one its own way, as a guidance too: its static
K, or its law without bounds. If another schedule is in force by then, it stays.
"""

import json
import os
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from specpilot.policy.http_client import open_url
from specpilot.policy.settings import without_secrets

CALIBRATED_WITHIN_S = 180.0
"""Seconds in which a starting engine has measured its own steps, or stopped trying."""
TIMEOUT_S = 10.0
_POLL_S = 0.2
_FIXED, _LAW, _CALIBRATING = "fixed", "law", "calibrating"
_NOT_FOUND = 404


class EndpointError(RuntimeError):
    """An endpoint that does not answer, or answers like another kind of server."""


class RefusedError(EndpointError):
    """An engine with SpecPilot's adapter that rejects a call without its control token."""


def model_of(url: str) -> str:
    """Return the first model that the endpoint serves; raises `EndpointError`.

    The bearer token is `OPENAI_API_KEY`, as in `vllm bench serve`.
    """
    request = Request(f"{url}/v1/models")  # noqa: S310 - the address that the user gave
    shown = without_secrets(request.full_url)
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with open_url(request, timeout=TIMEOUT_S) as reply:
            return str(json.loads(reply.read())["data"][0]["id"])
    except HTTPError as error:
        raise EndpointError(f"{shown} answers {error.code}; check the URL, without /v1") from error
    except (OSError, HTTPException) as error:
        raise EndpointError(f"{shown} does not answer: {getattr(error, 'reason', error)}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EndpointError(f"{shown} does not list models as OpenAI's API does; check the URL") from error


class Steering:
    """Sets K of the engine at `url`, which has SpecPilot's adapter; `control_token` is the engine's own, if any."""

    def __init__(self, url: str, control_token: str | None = None) -> None:
        self._url = url
        self._shown = without_secrets(url)
        self._token = control_token
        self._before: dict[str, Any] | None = None
        self._version: int | None = None

    def set_k(self, k: int | None, goal_ms: float | None = None) -> None:
        """Set K = `k` for all requests from the next step on, or let the law choose by a goal on their mean TPOT.

        Without either restore what was before. Raises `EndpointError`.
        """
        if k is None and goal_ms is None:
            self.give_back()
            return
        if self._before is None:
            self._before = self._calibrated()
        guidance = {"override": {"k": k}} if k is not None else {"classes": {"default": {"tpot_bound_ms": goal_ms}}}
        self._version = int(self._put({"guidance": guidance})["version"])
        self.check(k, goal_ms)

    def check(self, k: int | None, goal_ms: float | None = None) -> None:
        """Raise `EndpointError` unless the schedule by which K or a goal was set is the one in force."""
        if k is None and goal_ms is None:
            return
        fault = fault_of(self.state(), self._version, source=_LAW if k is None else _FIXED)
        if fault is not None:
            setting = f"goal of {goal_ms:g} ms" if k is None else f"K = {k}"
            raise EndpointError(f"{self._shown} no longer has the {setting} of this arm: {fault}")

    def give_back(self) -> None:
        """Restore the schedule from before the first `set_k`; raises `EndpointError`."""
        if self._before is None or self._version is None:
            return
        before, version = self._before, self._version
        self._before = self._version = None
        if self.state()["version"] == version:
            self._put(restoring(before))

    def state(self) -> dict[str, Any]:
        """Return the engine's state of K.

        Raises `RefusedError` when it needs another control token, else `EndpointError`.
        """
        return self._call(None, "to name its K")

    def _put(self, schedule: Mapping[str, Any]) -> dict[str, Any]:
        return self._call(json.dumps(schedule).encode(), "a schedule")

    def _calibrated(self) -> dict[str, Any]:
        """Return the engine's state of K, once it does not measure its own steps."""
        deadline = time.monotonic() + CALIBRATED_WITHIN_S
        while (state := self.state())["source"] == _CALIBRATING and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return state

    def _call(self, body: bytes | None, action: str) -> dict[str, Any]:
        """`GET /speculation`, or `PUT` of a schedule."""
        request = Request(f"{self._url}/speculation", method="GET" if body is None else "PUT", data=body)  # noqa: S310
        request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with open_url(request, timeout=TIMEOUT_S) as reply:
                state = json.loads(reply.read())
        except HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")[:300]
            if (refusal := _refusal(text, has_token=bool(self._token))) is not None:
                raise RefusedError(f"{self._shown} {refusal}") from error
            if error.code == _NOT_FOUND:
                raise EndpointError(f"{self._shown} has no /speculation, so it is no engine of SpecPilot's") from error
            raise EndpointError(f"{self._shown} refuses {action}: {error.code} {text}") from error
        except (OSError, HTTPException) as error:
            raise EndpointError(f"{self._shown} does not answer: {getattr(error, 'reason', error)}") from error
        except ValueError:
            state = None
        if isinstance(state, dict) and "ranks" in state:
            raise EndpointError(
                f"{self._shown} has data-parallel ranks, each with its K: measure a server of one engine"
            )
        if not isinstance(state, dict) or not state.keys() >= {"k_max", "static_k", "source", "version", "schedule"}:
            raise EndpointError(f"{self._shown} does not report the K in force, so it is no engine of SpecPilot's")
        return state


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


def fault_of(state: Mapping[str, Any], version: int | None, source: str = _FIXED) -> str | None:
    """Return why an engine with `state` does not apply the schedule of `version`; `None` if it does."""
    current, present_source = state["version"], state["source"]
    if current == version and present_source == source:
        return None
    if present_source == _CALIBRATING:
        return "it measures its own steps, as it does after its start; wait until that is over"
    if not current:
        return "it was restarted meanwhile"
    return (
        f"version {current} (source {present_source}) is in force there, not version {version}, so a controller steers "
        "this engine. Stop the controller, or measure an engine that was started without --redis-url"
    )


def restoring(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule that restores the K of an engine that had `state`."""
    schedule = state["schedule"]
    if schedule is not None:
        return {"guidance": schedule["guidance"]}
    return {"guidance": {"override": {"k": state["static_k"]}} if state["source"] == _FIXED else {}}

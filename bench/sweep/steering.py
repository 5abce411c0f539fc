"""K of one engine during a sweep: set before a cell, checked after it, and restored at the end.

A cell of an arm with a K counts only if the schedule that set it was in force from the first request to the last.
Versions only grow, so an engine with the same version before and after had no other one between. Another version comes
from a controller (it renews its schedule every few seconds), or from a restart of the engine. An engine that has just
started may first measure its own steps, at its own choice of K; the sweep waits for the end of this.

Restored is the guidance that was in force before; for an engine without one its own way, as a guidance too: its static
K, or its law without bounds. If another schedule is in force by then, it stays.
"""

import time
from collections.abc import Mapping
from typing import Any

from specpilot.bench.sweep import endpoint
from specpilot.bench.sweep.endpoint import EndpointError

CALIBRATED_WITHIN_S = 180.0
"""Seconds in which a starting engine has measured its own steps, or stopped trying."""
_POLL_S = 0.2
_FIXED, _CALIBRATING = "fixed", "calibrating"


class Steering:
    """Sets K of the engine at `url`, which has SpecPilot's adapter; `control_token` is the engine's own, if any."""

    def __init__(self, url: str, control_token: str | None = None) -> None:
        self._url = url
        self._token = control_token
        self._before: dict[str, Any] | None = None
        self._version: int | None = None

    def set_k(self, k: int) -> None:
        """Set K = `k` for all requests from the next step on; raises `EndpointError`."""
        if self._before is None:
            self._before = self._calibrated()
        schedule = {"guidance": {"override": {"k": k}}}
        self._version = int(endpoint.put_schedule(self._url, schedule, self._token)["version"])
        self.check(k)

    def check(self, k: int) -> None:
        """Raise `EndpointError` unless the schedule by which K was set to `k` is the one in force."""
        fault = fault_of(self._state(), self._version)
        if fault is not None:
            raise EndpointError(f"{self._url} no longer has the K = {k} of this arm: {fault}")

    def give_back(self) -> None:
        """Restore the schedule from before the first `set_k`; raises `EndpointError`."""
        if self._before is None or self._version is None:
            return
        before, version = self._before, self._version
        self._before = self._version = None
        if self._state()["version"] == version:
            endpoint.put_schedule(self._url, restoring(before), self._token)

    def _state(self) -> dict[str, Any]:
        return endpoint.speculation(self._url, self._token)

    def _calibrated(self) -> dict[str, Any]:
        """Return the engine's state of K, once it does not measure its own steps."""
        deadline = time.monotonic() + CALIBRATED_WITHIN_S
        while (state := self._state())["source"] == _CALIBRATING and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return state


def fault_of(state: Mapping[str, Any], version: int | None) -> str | None:
    """Return why an engine with `state` does not apply the schedule of `version`; `None` if it does."""
    current, source = state["version"], state["source"]
    if current == version and source == _FIXED:
        return None
    if source == _CALIBRATING:
        return "it measures its own steps, as it does after its start; wait until that is over"
    if not current:
        return "it was restarted meanwhile"
    return (
        f"version {current} (source {source}) is in force there, not version {version}, so a controller steers this "
        "engine. Stop the controller, or or "
        "measure an engine that was started without --redis-url"
    )


def restoring(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule that restores the K of an engine that had `state`."""
    schedule = state["schedule"]
    if schedule is not None:
        return {"guidance": schedule["guidance"]}
    return {"guidance": {"override": {"k": state["static_k"]}} if state["source"] == _FIXED else {}}

"""The failures of an unattended run, and the requests that it excuses."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.bench.fleet import unattended
from specpilot.bench.fleet.endpoint_calls import Fault, body_of, verdict
from specpilot.bench.fleet.unattended import Death, Memory, _is_excused, broken_promises

DONE = b'data: {"choices": []}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("status", "text", "streams", "found"),
    [
        (200, b'{"usage": {"completion_tokens": 8}}', False, "ok"),
        (200, b'{"usage": {"completion_tokens": 7}}', False, "wrong"),
        (200, b'{"usage": {"completion_tokens": 8}', False, "wrong"),
        (200, DONE, True, "ok"),
        (200, b'data: {"error": {"code": "stream_broken"}}\n\n', True, "refused"),
        (200, b'data: {"choices": []}\n\n', True, "wrong"),
        (503, b'{"error": {"code": "engine_unavailable"}}', False, "refused"),
        (502, b"<html>", False, "wrong"),
    ],
)
def test_verdicts(status: int, text: bytes, streams: bool, found: str) -> None:
    assert verdict(status, text, 8, streams=streams)[0] == found


def test_the_three_shapes_take_turns() -> None:
    bodies = [body_of(number, "m")[0] for number in range(3)]
    assert ["stream" in body for body in bodies] == [False, True, False]
    assert [("messages" in body, "prompt" in body) for body in bodies] == [(True, False), (True, False), (False, True)]
    assert all(json.loads(json.dumps(body)) for body in bodies)


@pytest.mark.parametrize(
    ("part", "began", "ended", "what", "is_excused"),
    [
        ("engine", 99.0, 100.5, "lost", True),  # in flight when it was killed
        ("engine", 120.0, 121.0, "refused", True),
        ("engine", 133.0, 134.0, "refused", False),
        ("engine", 98.0, 99.0, "refused", False),
        ("engine", 120.0, 121.0, "wrong", False),
        ("redis", 120.0, 121.0, "refused", False),
    ],
)
def test_who_is_excused(part: str, began: float, ended: float, what: str, is_excused: bool) -> None:
    death = Death(part, 100.0, 30.0, 5, 1, 1)
    assert _is_excused(Fault(began, ended, what, ""), [death]) is is_excused


@pytest.mark.parametrize(("leak_mib", "is_broken"), [(0.0, False), (3.0, True)])
def test_a_part_that_leaks_breaks_a_promise(leak_mib: float, is_broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an hour, in which the gateway is another one from the tenth minute on."""
    clock = [0.0]
    memory = Memory(None)  # type: ignore[arg-type]
    monkeypatch.setattr(unattended, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(unattended, "_pid_of", lambda part, _: 2 if part == "gateway" and clock[0] > 600 else 1)
    monkeypatch.setattr(
        unattended, "memory_of", lambda pid: int((100 + (clock[0] / 60) * (leak_mib if pid == 2 else 0)) * (1 << 20))
    )
    while clock[0] < 1800:
        memory.read()
        clock[0] += 1.0
    assert len(memory.readings["redis"]) == 360
    assert len(memory.readings["gateway"]) == 239
    found = {"failed_outside": 0, "wrong": 0, "status": 0, "deaths": [], "memory_slope_mib_per_min": memory.slopes()}
    said = broken_promises(found, 1.0)
    assert said == (["the memory of gateway grows by 3 MiB a minute, 3 at least"] if is_broken else [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"failed_outside": 1}, "1 requests failed although nothing that they need was away"),
        ({"wrong": 2}, "2 wrong answers"),
        ({"status": 1}, "it ended with status 1"),
        ({"deaths": [{"part": "redis", "pings_refused": 1}]}, "/ping was refused while redis was away"),
        ({"deaths": [{"part": "engine", "pings_refused": 0}]}, "/ping stayed 200 while engine was away"),
        ({"memory_slope_mib_per_min": {"gateway": [None, 0.0, None]}}, None),  # too short a life to judge
        ({"memory_slope_mib_per_min": {"redis": [0.2, 0.3, 0.4]}}, None),
        (
            {"memory_slope_mib_per_min": {"gateway": [1.5, 2.0, 2.5]}},
            "the memory of gateway grows by 2 MiB a minute, 1.5 at least",
        ),
    ],
)
def test_promises(changes: dict[str, Any], said: str | None) -> None:
    kept: dict[str, Any] = {"failed_outside": 0, "wrong": 0, "status": 0, "memory_slope_mib_per_min": {}}
    kept["deaths"] = [{"part": "engine", "pings_refused": 3}]
    assert broken_promises(kept | changes, 1.0) == ([] if said is None else [said])

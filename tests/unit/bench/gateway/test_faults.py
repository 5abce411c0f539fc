import asyncio
import dataclasses
from typing import Any

import pytest

from specpilot.bench.gateway.call_mix import EVERYDAY, Mix
from specpilot.bench.gateway.canned_engine import CannedConnection, CannedEngine
from specpilot.bench.gateway.faults import FAULTS, Row, broken_promises, markdown
from specpilot.bench.gateway.steady_calls import SteadyCalls
from tests.support.patience import PATIENCE_S

CALM = Row(
    says="nothing", sent=100, ok=100, disconnected=0, elsewhere=0, refused=0, broken=0, lost=0, lost_later=0, wrong=0,
    slots=0, in_flight=0, memory_ratio=1.0, files=0, logged_errors=0, codes={},
)  # fmt: skip
KILLED = dataclasses.replace(CALM, ok=80, elsewhere=15, broken=20)
CUT = dataclasses.replace(CALM, ok=70, lost=30)
LEFT = dataclasses.replace(CALM, ok=60, disconnected=40)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("none", CALM),
        ("engine-killed", KILLED),
        ("engine-slow", CALM),
        ("worker-killed", CUT),
        ("gateways-rolled", CALM),
        ("clients-leave-wait", LEFT),
    ],
)
def test_a_fault_that_keeps_its_promises_breaks_none(name: str, row: Row) -> None:
    assert broken_promises(FAULTS[name], row, 50) == []


@pytest.mark.parametrize(
    ("name", "row", "changes", "said"),
    [
        ("engine-killed", KILLED, {"refused": 1, "ok": 79}, "refused"),
        ("engine-killed", KILLED, {"lost": 1, "ok": 79}, "lost"),
        ("engine-killed", KILLED, {"elsewhere": 0}, "had no effect"),
        ("engine-slow", CALM, {"broken": 1, "ok": 99}, "broken"),
        ("engine-mute", KILLED, {}, "20 streams broken"),
        ("engine-401", KILLED, {}, "20 streams broken"),
        ("engine-500", KILLED, {}, "20 streams broken"),
        ("engine-error-events", KILLED, {}, "20 streams broken"),
        ("none", CALM, {"wrong": 1, "ok": 99}, "wrong"),
        ("none", CALM, {"ok": 99}, "add up"),
        ("worker-killed", CUT, {"lost": 51, "ok": 49}, "51 lost"),
        ("worker-killed", CUT, {"lost_later": 1}, "after"),
        ("worker-killed", CUT, {"lost": 0, "ok": 100}, "had no effect"),
        ("gateways-rolled", CALM, {"lost": 1, "ok": 99}, "lost"),
        ("clients-leave-wait", LEFT, {"disconnected": 0, "ok": 100}, "nobody"),
        ("none", CALM, {"slots": 1}, "slots"),
        ("none", CALM, {"in_flight": 1}, "in flight"),
        ("none", CALM, {"memory_ratio": 1.3}, "memory"),
        ("none", CALM, {"files": 1}, "files"),
        ("none", CALM, {"logged_errors": 1}, "log"),
    ],
)
def test_each_promise_can_be_broken(name: str, row: Row, changes: dict[str, Any], said: str) -> None:
    [found] = broken_promises(FAULTS[name], dataclasses.replace(row, **changes), 50)
    assert said in found


def test_the_table_has_a_line_for_each_fault() -> None:
    lines = markdown({name: dataclasses.replace(CALM, says=fault.says) for name, fault in FAULTS.items()}).splitlines()
    assert len(lines) == 2 + len(FAULTS)
    assert {line.count("|") for line in lines} == {12}


def test_every_fault_that_the_gateway_has_promises_for_is_there() -> None:
    assert sum(fault.cuts for fault in FAULTS.values()) == 2
    assert sum(fault.fails for fault in FAULTS.values()) == 7
    assert {name for name, fault in FAULTS.items() if fault.breaks} == {
        "engine-killed",
        "engine-hung",
        "engine-flapping",
    }
    assert {fault.leaves for fault in FAULTS.values()} == {"", "head", "body", "wait", "stream"}


async def test_calls_are_kept_in_flight_and_all_are_accounted_for() -> None:
    canned = CannedEngine()
    server = await asyncio.get_running_loop().create_server(lambda: CannedConnection(canned), "127.0.0.1", 0)
    calls = SteadyCalls([server.sockets[0].getsockname()[1]], Mix(EVERYDAY, 1, "token", 0.05), 8)
    counts = calls.counts
    async with server, asyncio.timeout(PATIENCE_S), calls.running():
        while counts.outcomes["ok"] < 8:  # noqa: ASYNC110 - they signal no event
            await asyncio.sleep(0.05)
        canned.mode = {"status": 503}
        while not counts.outcomes["refused"]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    assert counts.outcomes["refused"] == counts.codes["refused canned_503"]
    assert counts.outcomes.total() == counts.requests == canned.requests
    assert not canned.held


def test_engines_fail_in_every_way_and_gateways_have_default_settings() -> None:
    assert {"engine-mute", "engine-401", "engine-error-events", "engine-hung", "engine-500"} <= set(FAULTS)
    assert {name for name, fault in FAULTS.items() if fault.flags} == {"gateways-rolled"}

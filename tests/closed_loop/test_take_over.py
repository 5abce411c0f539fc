"""Who takes over goes on from the schedule in force, whatever its own estimates say of loads that are not there."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specpilot.bench.simulation.engine import K_MAX, MODEL, POOL
from specpilot.controller.cli.replay import replay
from specpilot.controller.recording.record import from_line, to_line
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.types import Decision, KRange, Policy
from tests.support.loop_rig import Rig

DWELL_S = Policy(MODEL).dwell_s


async def test_the_successors_first_schedule_is_its_predecessors_for_every_load_and_class() -> None:
    first = Rig.new()
    second = Rig.new("other", beside=first)
    for _ in range(30):
        await first.tick()
        first.clock.at -= 1.0
        await second.tick()
    # As if the predecessor had known better: far from here no draft pays, and farther still every draft is deep.
    settled = first.store.published[MODEL, POOL]
    ranges = settled.classes["default:7"]
    beyond = (KRange(1, 18, ranges[0].k), KRange(19, 40, 0), KRange(41, ranges[-1].hi, K_MAX))
    before = replace(settled, classes={**settled.classes, "default:7": beyond})
    first.store.published[MODEL, POOL] = before
    first.store.leader = None
    await second.tick()
    after = first.store.published[MODEL, POOL]
    assert (after.version, after.classes) == (before.version + 1, before.classes)
    again = [dict(item.result.publish or {}) for item in replay(from_line(to_line(one)) for one in second.recorded)]
    assert again[-1] == before.classes
    await second.tick(round(DWELL_S))
    assert first.store.log[-1].reason in {"gain", "optimal"}  # it has its own view


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after Redis failed it once"])
async def test_a_pool_that_stepped_back_stays_so_under_a_controller_that_was_started_anew(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ticks in stand-by first, until the lease of the one that was killed has ended."""
    first = Rig.new()
    await first.tick(20)
    last = first.store.log[-1]
    found = {**last.evidence["hold_out"], "is_stepped_back": True}
    first.store.log.append(replace(last, evidence={**last.evidence, "hold_out": found}))
    second = Rig.new("other", beside=first)
    await second.tick(3)
    assert second.leadership.lease is None
    first.store.leader = None
    if fails:
        answers = first.store.decisions

        def failing_once(*_: object) -> Sequence[Decision]:
            monkeypatch.setattr(first.store, "decisions", answers)
            raise StoreUnavailableError("Redis does not answer: a fail-over")

        monkeypatch.setattr(first.store, "decisions", failing_once)
    await second.tick(3)
    assert first.store.log[-1].reason == "static_better"
    again = [item.result.reason.value for item in replay(from_line(to_line(one)) for one in second.recorded)]
    assert again[-1] == "static_better"

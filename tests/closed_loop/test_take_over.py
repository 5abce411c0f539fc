"""A controller that takes over goes on where its predecessor ended."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.records import Decision
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig


async def test_the_successors_first_schedule_has_its_predecessors_guidance() -> None:
    first = Rig.new()
    second = Rig.new("other", beside=first)
    for _ in range(30):
        await first.tick()
        first.clock.at -= 1.0
        await second.tick()
    before = first.store.published[MODEL, POOL]
    first.store.leader = None
    await second.tick()
    after = first.store.published[MODEL, POOL]
    assert (after.version, after.guidance) == (before.version + 1, before.guidance)


@pytest.mark.parametrize("fails", [False, True], ids=["at once", "after Redis failed it once"])
async def test_a_pool_that_fell_back_stays_so_under_a_controller_that_was_started_anew(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ticks in stand-by first, until the lease of the one that was killed has ended."""
    first = Rig.new()
    await first.tick(20)
    last = first.store.log[-1]
    found = {**last.evidence["control_group"], "has_lost": True}
    first.store.log.append(replace(last, evidence={**last.evidence, "control_group": found}))
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
    assert first.store.log[-1].reason == "fallen_back"

"""Each of the controller's own actions is in the audit, once."""

from itertools import pairwise

import pytest

from specpilot.controller.decision.control_group import ControlGroup
from specpilot.policy.audit import CONTROLLER, Result
from specpilot.policy.canary import Canary, Experiment
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold
from specpilot.policy.model_policy import Policy
from tests.simulation.engine import MODEL, POOL
from tests.support.loop_rig import Rig


async def test_a_fall_back_to_the_static_k_is_an_entry(rig: Rig) -> None:
    """The condition of a fall back is tested in the closed loop; here the control group's state is set."""
    rig.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    await rig.tick(40)
    fall_back(rig)
    await rig.tick()  # also in a window that runs adaptive K
    [entry] = rig.store.audited
    assert (entry.who, entry.action, entry.result) == (CONTROLLER, "fall_back_to_static", Result.DONE)
    assert entry.subject == f"{MODEL} {POOL}"
    assert rig.store.published[MODEL, POOL].is_fallen_back
    assert [tuple(item) for item in entry.changes] == [
        ("override", None, {"k": 1, "cause": "fallen_back", "until": None}),
    ]


@pytest.fixture
def _never_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlGroup, "_test", lambda _: None)
    monkeypatch.setattr("specpilot.controller.decision.control_group.FALLEN_BACK_RATIO", 0.5)


def fall_back(rig: Rig) -> None:
    """Set the control group's state to a loss; the law runs in every other window."""
    rig.law._pools[MODEL, POOL].control_group.has_lost = True


def returns_to_static(rig: Rig) -> int:
    """Return how often the static K came back into force."""
    reasons = [item.reason for item in rig.store.log if item.published]
    return sum(now == "fallen_back" != before for before, now in pairwise(reasons))


@pytest.mark.usefixtures("_never_tested")
async def test_a_fall_back_is_one_entry_however_often_the_law_runs_meanwhile(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    await rig.tick(20)
    fall_back(rig)
    await rig.tick(60)
    assert returns_to_static(rig) >= 3
    assert len(rig.store.audited) == 1
    rig.law._pools[MODEL, POOL].control_group.has_lost = False
    await rig.tick(4)
    fall_back(rig)
    await rig.tick(12)
    assert len(rig.store.audited) == 2


@pytest.mark.usefixtures("_never_tested")
async def test_a_leader_that_takes_over_a_pool_that_fell_back_adds_no_entry(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    standby = Rig.new("standby", beside=rig)
    await rig.tick(20)
    fall_back(rig)
    await rig.tick(12)
    assert len(rig.store.audited) == 1
    for old, new in ((rig, standby), (standby, rig)):
        await new.tick()
        old.leadership.release()
        before = returns_to_static(rig)
        await new.tick()
        fall_back(new)
        await new.tick(30)
        assert returns_to_static(rig) > before
    assert len(rig.store.audited) == 1


async def test_a_canary_that_the_law_ends_is_an_entry(rig: Rig) -> None:
    rig.store.put_policy(Policy(MODEL, k_max=3), 0, 0.0)
    rig.store.put_canary(Experiment(1, "id", Canary(Policy(MODEL, k_max=5)), 1, rig.clock.now()), None, 0.0)
    await rig.tick(3)
    rig.store.put_policy(Policy(MODEL, k_max=2), 1, 0.0)
    await rig.tick(5)
    [entry] = rig.store.audited
    assert (entry.who, entry.action, entry.subject) == (CONTROLLER, "end_canary", MODEL)
    assert (entry.code, entry.message) == ("policy_changed", "the canary ended: policy_changed, after 0 blocks")


async def test_a_freeze_whose_time_is_over_is_one_entry_though_the_leader_changes(rig: Rig) -> None:
    standby = Rig.new("standby", beside=rig)
    until = rig.clock.now() + 5.5
    rig.store.frozen[EVERYTHING] = Freeze(EVERYTHING, Hold.STATIC, 0.0, until, "ada")
    rig.store.frozen[MODEL] = Freeze(MODEL, Hold.STATIC, 0.0, until, "ada")
    await rig.tick(2)
    del rig.store.frozen[MODEL]  # lifted: that has an entry of its own
    await standby.tick(2)
    rig.leadership.release()
    await standby.tick()
    assert rig.store.audited == []
    await standby.tick(5)
    await rig.tick()
    standby.leadership.release()
    await rig.tick(5)
    [entry] = rig.store.audited
    assert (entry.who, entry.action, entry.subject) == (CONTROLLER, "end_freeze", EVERYTHING)
    assert entry.message == "the time of the freeze by ada is over"
    assert {tuple(item) for item in entry.changes} == {("hold", "static", None), ("until", until, None)}

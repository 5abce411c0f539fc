import threading
from dataclasses import replace
from typing import Any

import pytest

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl, law_table
from specpilot.policy.schedule import Cause, ClassGuidance, Guidance, Objective, Override, Schedule
from tests.support.patience import PATIENCE_S

GUIDANCE = Guidance(Objective.THROUGHPUT, {"default": ClassGuidance(k_max=50)})
AS_NOW = replace(GUIDANCE, override=Override(None, Cause.FROZEN))


def fixed(k: int, cause: Cause = Cause.OPERATOR) -> Guidance:
    return replace(GUIDANCE, override=Override(k, cause))


def schedule(version: int = 1, guidance: Guidance = GUIDANCE, **more: Any) -> Schedule:
    return Schedule("m", "p", version, 1000.0, guidance, **more)


def control(k_max: int = 7, static_k: int = 3, *, adapts: bool = True) -> SpeculationControl:
    subject = SpeculationControl("m", "p", k_max, static_k, max_running=32, adapts=adapts, engine_id="one")
    subject.by_law = law_table(EngineLaw(k_max, static_k, 32), 0.005) if k_max else None
    return subject


def found(subject: SpeculationControl, now: float, name: str = "default") -> tuple[Source, int]:
    """Source and K of a class; of a law without evidence the static K."""
    table = subject.table(now)
    return table.source, table.k(name)


def test_without_a_schedule_an_engine_adapts_or_runs_the_static_k_of_its_operator() -> None:
    assert control().table(0.0).source is Source.LAW
    assert found(control(adapts=False), 0.0) == (Source.FIXED, 3)
    assert control(k_max=0, static_k=0).table(0.0).source is Source.FIXED


def test_before_its_law_is_there_an_engine_runs_the_static_k() -> None:
    subject = control()
    subject.by_law = None
    assert found(subject, 0.0) == (Source.FIXED, 3)
    subject.offer(schedule(), 0.0)
    assert found(subject, 0.0) == (Source.FIXED, 3)


@pytest.mark.parametrize("adapts", [True, False])
def test_the_last_guidance_holds_without_an_end(*, adapts: bool) -> None:
    subject = control(adapts=adapts)
    subject.offer(schedule(), 0.0)
    assert [subject.table(at).source for at in (0.0, 1e9)] == [Source.LAW] * 2
    assert subject.guidance(1e9) is GUIDANCE
    subject.offer(schedule(2, fixed(5, Cause.OFF)), 0.0)
    assert found(subject, 1e9) == (Source.FIXED, 5)


def test_an_operators_k_ignores_bounds_an_experiments_keeps_them_and_both_are_at_most_k_max() -> None:
    classes = {"default": ClassGuidance(k_max=4), "code": ClassGuidance(k_min=6)}
    for version, (cause, k, expected) in enumerate(
        [
            (Cause.OFF, 5, (5, 5)),
            (Cause.FROZEN, 9, (7, 7)),
            (Cause.CONTROL_GROUP, 5, (4, 6)),
            (Cause.FALLEN_BACK, 9, (4, 7)),
        ],
        start=1,
    ):
        subject = control()
        subject.offer(schedule(version, Guidance(classes=classes, override=Override(k, cause))), 0.0)
        table = subject.table(0.0)
        assert (table.k("default"), table.k("code")) == expected
        assert table.k("poetry") == expected[0]  # a class that is not named
        assert (table.probe_ratio, table.probe_depth("default")) == (0.0, 0)


def test_guidance_that_pins_every_class_is_fixed_at_once() -> None:
    subject = control()
    pinned = {"default": ClassGuidance(k_min=2, k_max=2), "code": ClassGuidance(k_min=9, k_max=9)}
    subject.offer(schedule(1, Guidance(classes=pinned)), 0.0)
    assert (found(subject, 0.0), found(subject, 0.0, "code")) == ((Source.FIXED, 2), (Source.FIXED, 7))


def test_in_a_window_an_engine_follows_its_own_guidance_until_the_window_ends_by_itself() -> None:
    subject = control()
    window = schedule(drawn=("one", "two"), drawn_until=1003.0, drawn_guidance=fixed(0, Cause.CONTROL_GROUP))
    subject.offer(window, 50.0)
    sources = [Source.FIXED, Source.FIXED, Source.LAW, Source.LAW]
    assert [subject.table(at).source for at in (50.0, 53.0, 53.1, 1e9)] == sources
    subject.offer(replace(window, version=2, drawn=("two",)), 60.0)
    assert subject.table(60.0).source is Source.LAW
    fallen_back = replace(window, guidance=fixed(3, Cause.FALLEN_BACK), drawn_guidance=GUIDANCE)
    subject.offer(replace(fallen_back, version=3), 70.0)
    assert [subject.table(at).source for at in (70.0, 73.1)] == [Source.LAW, Source.FIXED]
    other = replace(GUIDANCE, objective=Objective.LATENCY)
    subject.offer(replace(window, version=4, drawn_guidance=other), 80.0)  # a canary
    assert [subject.guidance(at) for at in (80.0, 83.1)] == [other, GUIDANCE]


def test_an_override_as_now_keeps_what_ran_outside_of_windows() -> None:
    subject = control()
    subject.offer(schedule(1), 0.0)
    window = schedule(2, drawn=("one",), drawn_until=1003.0, drawn_guidance=fixed(0, Cause.CONTROL_GROUP))
    subject.offer(window, 0.0)
    subject.offer(schedule(3, AS_NOW), 1.0)
    assert (subject.source(1.0), subject.holds_law(1.0)) == (Source.FIXED, True)
    assert subject.table(1.0).source is Source.LAW, "its groups are kept"
    subject.offer(schedule(4, AS_NOW), 2.0)  # renewed
    assert subject.holds_law(2.0)
    subject.offer(schedule(5, fixed(5, Cause.OFF)), 3.0)
    assert not subject.holds_law(3.0)
    for version in (6, 7):
        subject.offer(schedule(version, AS_NOW), 4.0)
        assert (found(subject, 4.0), subject.holds_law(4.0)) == ((Source.FIXED, 5), False)
    subject.offer(schedule(8), 5.0)
    assert (subject.source(5.0), subject.holds_law(5.0)) == (Source.LAW, False)


def test_an_engine_that_was_restarted_has_nothing_to_keep_and_runs_the_static_k() -> None:
    subject = control()
    subject.offer(schedule(9, AS_NOW), 0.0)
    assert (found(subject, 0.0), subject.holds_law(0.0)) == ((Source.FIXED, 3), False)


def test_an_override_with_an_end_ends_by_itself() -> None:
    subject = control()
    subject.offer(schedule(1, replace(GUIDANCE, override=Override(2, Cause.FROZEN, 1010.0))), 50.0)
    assert [subject.table(at).source for at in (60.0, 60.1)] == [Source.FIXED, Source.LAW]
    assert (subject.override(60.0), subject.override(60.1)) == (Override(2, Cause.FROZEN, 1010.0), None)


@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_version_that_is_not_newer_is_refused(version: int) -> None:
    subject = control()
    subject.offer(schedule(version=5), now=0.0)
    with pytest.raises(StaleScheduleError, match="version 5 is in force"):
        subject.offer(schedule(version=version), now=1e9)


@pytest.mark.parametrize(
    ("offered", "field"),
    [
        (Schedule("other", "p", 9, 0.0, GUIDANCE), "model"),
        (Schedule("m", "other", 9, 0.0, GUIDANCE), "pool"),
    ],
)
def test_a_refused_schedule_names_its_field_and_leaves_the_running_one(offered: Schedule, field: str) -> None:
    subject = control()
    subject.offer(schedule(1, fixed(6)), now=0.0)
    with pytest.raises(ScheduleRefusedError) as caught:
        subject.offer(offered, now=0.0)
    assert caught.value.field == field
    assert (subject.version, found(subject, 0.0)) == (1, (Source.FIXED, 6))


def test_a_static_k_above_k_max_is_refused_at_birth() -> None:
    with pytest.raises(ScheduleRefusedError, match="K_max is 7"):
        control(k_max=7, static_k=8)


def test_of_two_schedules_offered_at_once_the_newer_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, began, may_go_on = control(), threading.Event(), threading.Event()
    way_of = subject._setting

    def slowly(guidance: Guidance, *arguments: Any) -> Any:
        if guidance.override == Override(5):
            began.set()
            assert may_go_on.wait(PATIENCE_S)
        return way_of(guidance, *arguments)

    monkeypatch.setattr(subject, "_setting", slowly)
    older, newer = (
        threading.Thread(target=subject.offer, args=(schedule(version, fixed(version)), 0.0)) for version in (5, 6)
    )
    older.start()
    assert began.wait(PATIENCE_S)
    newer.start()
    newer.join(0.2)
    may_go_on.set()
    for thread in (older, newer):
        thread.join(PATIENCE_S)
    assert (subject.version, found(subject, 0.0)) == (6, (Source.FIXED, 6))

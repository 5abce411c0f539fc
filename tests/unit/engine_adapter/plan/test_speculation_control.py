import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan import speculation_control as apply
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl, law_table, table_of
from specpilot.policy.bands import BANDS
from specpilot.policy.schedule import ClassGuidance, Guidance, KRange, Objective, Schedule
from tests.support.patience import PATIENCE_S


def schedule(version: int = 1, valid_for_s: float = 10.0, **classes: list[tuple[int, int, int]]) -> Schedule:
    ranges = {name: tuple(KRange(*item) for item in items) for name, items in classes.items()}
    return Schedule("m", "p", version, 0.0, valid_for_s, 0.0, ranges or {"default": (KRange(1, 1, 2),)})


def control(k_max: int = 7, static_k: int = 3, hold_s: float = 0.0) -> SpeculationControl:
    return SpeculationControl("m", "p", k_max, static_k, max_running=32, hold_s=hold_s, engine_id="one")


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    items, lo = [], 1
    for _ in range(draw(st.integers(1, 6))):
        hi = lo + draw(st.integers(0, 12))
        items.append((lo, hi, draw(st.integers(0, 7))))
        lo = hi + 1
    return items


@given(ranges(), st.integers(1, 100))
def test_the_table_equals_its_ranges(items: list[tuple[int, int, int]], running: int) -> None:
    expected = next((k for lo, hi, k in items if lo <= running <= hi), items[-1][2])
    assert table_of(schedule(default=items), max_running=200).k("default", 4, running) == expected


def test_an_engine_that_adapts_does_so_where_no_schedule_is_valid() -> None:
    """A controller that comes takes over, and one that goes away leaves the engine adapting."""
    engine = control(hold_s=100.0)
    assert engine.table(0.0).source is Source.STATIC
    engine.adapting = law_table(EngineLaw(7, 3, 32), 0.005)
    assert engine.table(0.0) is engine.adapting
    engine.offer(schedule(valid_for_s=10.0), 0.0)
    assert [engine.table(at).source for at in (5.0, 11.0, 200.0)] == [Source.SCHEDULE, Source.ENGINE, Source.ENGINE]
    engine.adapting = None
    assert [engine.table(at).source for at in (5.0, 11.0, 200.0)] == [Source.SCHEDULE, Source.HELD, Source.EXPIRED]


GUIDANCE = Guidance(Objective.THROUGHPUT, {"default": ClassGuidance(k_max=50)})


def test_under_guidance_the_engines_law_chooses_as_soon_as_it_can_and_while_the_schedule_is_held() -> None:
    engine = control(hold_s=100.0)
    guided = replace(schedule(valid_for_s=10.0), guidance=GUIDANCE)
    engine.offer(guided, 0.0)  # a bound above the engine's K_max is no fault
    assert [engine.table(at).source for at in (5.0, 11.0, 111.0)] == [Source.SCHEDULE, Source.HELD, Source.EXPIRED]
    engine.guided = law_table(EngineLaw(7, 3, 32), 0.005, Source.GUIDANCE)
    assert [engine.table(at).source for at in (5.0, 11.0, 111.0)] == [Source.GUIDANCE, Source.GUIDANCE, Source.EXPIRED]
    assert [engine.guidance(at) for at in (5.0, 11.0, 111.0)] == [GUIDANCE, GUIDANCE, None]
    engine.adapting = law_table(EngineLaw(7, 3, 32), 0.005)
    assert [engine.table(at).source for at in (5.0, 11.0, 111.0)] == [Source.GUIDANCE, Source.GUIDANCE, Source.ENGINE]


def test_a_newer_schedule_of_rows_ends_guidance_at_once() -> None:
    engine = control()
    engine.guided = law_table(EngineLaw(7, 3, 32), 0.005, Source.GUIDANCE)
    engine.offer(replace(schedule(1), guidance=GUIDANCE), 0.0)
    assert engine.table(3.0).source is Source.GUIDANCE
    engine.offer(schedule(2), 4.0)
    assert (engine.table(4.0).source, engine.guidance(4.0)) == (Source.SCHEDULE, None)


def test_in_a_window_of_the_control_group_an_engine_follows_rows_while_the_schedule_is_valid() -> None:
    engine = control(hold_s=100.0)
    engine.guided = law_table(EngineLaw(7, 3, 32), 0.005, Source.GUIDANCE)
    guided = replace(schedule(valid_for_s=10.0), guidance=GUIDANCE, drawn=("one", "two"))
    engine.offer(guided, 0.0)
    assert [engine.table(at).source for at in (5.0, 11.0)] == [Source.SCHEDULE, Source.GUIDANCE]
    assert engine.guidance(5.0) is GUIDANCE  # the law keeps its wishes
    engine.offer(replace(guided, version=2, drawn=("two",)), 20.0)
    assert engine.table(20.0).source is Source.GUIDANCE
    fallen_back = replace(guided, guidance=None, drawn_guidance=GUIDANCE)
    for version, drawn, source in ((3, ("two",), Source.SCHEDULE), (4, ("one",), Source.GUIDANCE)):
        engine.offer(replace(fallen_back, version=version, drawn=drawn), 20.0)
        assert (engine.table(20.0).source, engine.guidance(20.0)) == (source, GUIDANCE)
    assert engine.table(31.0).source is Source.HELD  # its window is over, and the pool has fallen back
    engine.offer(replace(fallen_back, version=5, drawn=()), 20.0)
    assert engine.table(31.0).source is Source.HELD  # the static K stays, as the law lost


def test_in_a_canarys_window_an_engine_follows_the_canarys_guidance_until_the_window_ends() -> None:
    engine = control(hold_s=100.0)
    engine.guided = law_table(EngineLaw(7, 3, 32), 0.005, Source.GUIDANCE)
    other = replace(GUIDANCE, objective=Objective.LATENCY)
    window = replace(schedule(valid_for_s=60.0), guidance=GUIDANCE, drawn_guidance=other, drawn=("one",))
    engine.offer(replace(window, issued_at=1000.0, drawn_until=1003.0), 50.0)
    assert [engine.guidance(at) for at in (50.0, 53.0, 53.1, 109.0)] == [other, other, GUIDANCE, GUIDANCE]
    engine.offer(replace(window, version=2, drawn=()), 60.0)
    assert engine.guidance(60.0) is GUIDANCE
    assert engine.table(60.0).source is Source.GUIDANCE


@pytest.mark.parametrize("is_fallen_back", [False, True])
def test_a_window_of_the_control_group_ends_by_itself_where_no_controller_ends_it(*, is_fallen_back: bool) -> None:
    engine = control(hold_s=100.0)
    engine.guided = law_table(EngineLaw(7, 3, 32), 0.005, Source.GUIDANCE)
    guidance, drawn_guidance = (None, GUIDANCE) if is_fallen_back else (GUIDANCE, None)
    drawn = replace(schedule(valid_for_s=60.0), guidance=guidance, drawn_guidance=drawn_guidance, drawn=("one",))
    engine.offer(replace(drawn, issued_at=1000.0, drawn_until=1003.0), 50.0)
    inside, outside = (Source.GUIDANCE, Source.SCHEDULE) if is_fallen_back else (Source.SCHEDULE, Source.GUIDANCE)
    assert [engine.table(at).source for at in (50.0, 53.0, 53.1, 109.0)] == [inside, inside, outside, outside]


def test_a_class_that_the_schedule_does_not_name_uses_default() -> None:
    table = table_of(schedule(default=[(1, 4, 2)], code=[(1, 4, 5)]), 32)
    assert table.k("code", 4, 3) == 5
    assert table.k("poetry", 4, 3) == 2


def test_a_row_for_a_band_goes_before_that_of_its_class_and_only_such_classes_are_probed() -> None:
    rows = {"default": [(1, 4, 2)], "default:7": [(1, 4, 6)], "code": [(1, 4, 3)], "chat:0": [(1, 2, 0), (3, 4, 1)]}
    table = table_of(schedule(**rows), 32)
    assert [table.k("default", band, 3) for band in range(BANDS)] == [2] * 7 + [6]
    assert [table.k("poetry", band, 3) for band in range(BANDS)] == [2] * 7 + [6]
    assert [table.k("code", band, 3) for band in range(BANDS)] == [3] * 8
    assert [table.k("chat", band, 3) for band in range(BANDS)] == [1] + [2] * 6 + [6]
    assert [table.k("chat", 0, running) for running in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 1]
    assert [table.probe_depth(name) for name in ("default", "poetry", "chat", "code")] == [6, 6, 6, 0]


def test_without_a_schedule_the_static_k_holds() -> None:
    table = control(static_k=3).table(now=0.0)
    assert (table.source, table.k("code", 4, 9), table.probe_ratio) == (Source.STATIC, 3, 0.0)


def test_a_stale_schedule_expires_to_the_static_k_and_a_newer_one_revives_it() -> None:
    subject = control(static_k=3)
    subject.offer(replace(schedule(valid_for_s=10.0, default=[(1, 1, 6)]), probe_ratio=0.1), now=100.0)
    assert (subject.table(110.0).k("default", 4, 1), subject.table(110.0).probe_ratio) == (6, 0.1)
    assert subject.table(110.1).source is Source.EXPIRED
    assert (subject.table(110.1).k("default", 4, 1), subject.table(110.1).probe_ratio) == (3, 0.0)
    subject.offer(schedule(version=2, default=[(1, 1, 5)]), now=111.0)
    assert subject.table(111.0).k("default", 4, 1) == 5


def test_a_schedule_without_renewal_is_held_before_it_expires() -> None:
    subject = control(static_k=3, hold_s=100.0)
    subject.offer(schedule(valid_for_s=10.0, default=[(1, 1, 6)]), now=0.0)
    found = [subject.table(now) for now in (10.0, 10.1, 110.0, 110.1)]
    assert [table.source for table in found] == [Source.SCHEDULE, Source.HELD, Source.HELD, Source.EXPIRED]
    assert [table.k("default", 4, 1) for table in found] == [6, 6, 6, 3]


@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_version_that_is_not_newer_is_refused_even_after_expiry(version: int) -> None:
    subject = control()
    subject.offer(schedule(version=5, valid_for_s=1.0, default=[(1, 1, 6)]), now=0.0)
    with pytest.raises(StaleScheduleError, match="version 5 is in force"):
        subject.offer(schedule(version=version), now=50.0)


@pytest.mark.parametrize(
    ("offered", "field"),
    [
        (schedule(version=9, default=[(1, 1, 2)], code=[(1, 4, 8)]), "classes.code"),
        (Schedule("other", "p", 9, 0.0, 1.0, 0.0, {"default": (KRange(1, 1, 1),)}), "model"),
        (Schedule("m", "other", 9, 0.0, 1.0, 0.0, {"default": (KRange(1, 1, 1),)}), "pool"),
    ],
)
def test_a_refused_schedule_names_its_field_and_leaves_the_running_one(offered: Schedule, field: str) -> None:
    subject = control()
    subject.offer(schedule(version=1, default=[(1, 1, 6)]), now=0.0)
    with pytest.raises(ScheduleRefusedError) as caught:
        subject.offer(offered, now=0.0)
    assert caught.value.field == field
    assert subject.version == 1
    assert subject.table(0.0).k("default", 4, 1) == 6


def test_a_static_k_above_k_max_is_refused_at_birth() -> None:
    with pytest.raises(ScheduleRefusedError, match="K_max is 7"):
        control(k_max=7, static_k=8)


def test_of_two_schedules_offered_at_once_the_newer_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, began, may_go_on = control(), threading.Event(), threading.Event()

    def slowly(offered: Schedule, max_running: int) -> apply.KTable:
        if offered.version == 5:
            began.set()
            assert may_go_on.wait(PATIENCE_S)
        return table_of(offered, max_running)

    monkeypatch.setattr(apply, "table_of", slowly)
    older, newer = (
        threading.Thread(target=subject.offer, args=(schedule(version, default=[(1, 32, version)]), 0.0))
        for version in (5, 6)
    )
    older.start()
    assert began.wait(PATIENCE_S)
    newer.start()
    newer.join(0.2)
    may_go_on.set()
    for thread in (older, newer):
        thread.join(PATIENCE_S)
    assert (subject.version, subject.table(0.0).k("default", 4, 1)) == (6, 6)

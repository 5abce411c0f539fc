"""The error rates of the control group's test. In every eighth window the rarer of both K runs, one of each block."""

import math
import random
from collections.abc import Callable

import pytest

from specpilot.controller.decision.control_group import (
    LEAST_WINDOWS,
    WINDOW_S,
    Comparison,
    ControlGroup,
    windows_at_tests,
)
from specpilot.controller.estimation.observation import Evidence, Snapshot
from specpilot.controller.estimation.switchback import UnitState
from specpilot.policy.gain import LogGain
from specpilot.policy.schedule import Objective

EIGHTH = 1 / 8
NOISE, MUCH_NOISE = 0.1, 0.15
"""Standard deviations of the logarithm of a window's throughput."""


def snapshot(at: float, elapsed_s: float, throughput: dict[str, float], decodes: float = 8.0) -> Snapshot:
    """A snapshot of a busy engine: tokens per second by class, of `decodes` requests each, in steps of 10 ms."""
    steps = 100 * elapsed_s
    evidence = Evidence(
        drafts={(name, 4, 0): steps * decodes for name in throughput},
        decode_tokens={(name, 4): rate * elapsed_s for name, rate in throughput.items()},
        steps_by={"decode": steps},
        seconds_by={"decode": elapsed_s},
    )
    return Snapshot(at, elapsed_s, evidence)


class Traffic:
    """Feeds a control group windows with noise, in which adaptive K has a given gain."""

    def __init__(self, seed: int, noise: float = NOISE) -> None:
        self._noise = noise
        self.control_group = ControlGroup()
        self.control_group.set_comparison(Comparison(7))
        self._rng = random.Random(seed)
        self._index = 0

    def pass_by(self, compared: int, gain: float) -> bool:
        """Compare about `compared` windows; return whether the pool ever fell back meanwhile."""
        has_fallen_back = False
        for _ in range(8 * compared):
            is_drawn = self._index % 8 == 4
            is_static = is_drawn is not self.control_group.has_lost
            log_throughput = self._rng.gauss(0.0 if is_static else gain, self._noise)
            begun_at = self._index * WINDOW_S
            window = snapshot(begun_at + 3.0, 0.5, {"default": 1000.0 * math.exp(log_throughput)})
            self.control_group.add_tick({"p": UnitState(None, begun_at, is_drawn)}, begun_at, EIGHTH)
            self.control_group.add_tick({"p": UnitState(window, window.at, is_drawn)}, window.at, EIGHTH)
            has_fallen_back |= self.control_group.has_lost
            self._index += 1
        return has_fallen_back


def measured(
    control_group: ControlGroup,
    rates: Callable[[bool], dict[str, float]],
    *,
    tick_s: float = 0.5,
    scrape_s: float = 0.5,
    late_s: float = 0.0,
    windows: int = 80,
) -> list[LogGain]:
    """Return the gains over `windows` windows; in every eighth the static K comes into force at its first tick.

    Ticks are `tick_s` apart; snapshots end `scrape_s` apart, and arrive at the first tick at least `late_s` later.
    """
    gains, in_force, index, at, is_static = [], False, -1, 0.2, False
    looks: list[tuple[float, dict[str, float]]] = []
    shown = look_end = 0.0
    while at < windows * control_group.window_s:
        while look_end + scrape_s <= at - late_s:
            look_end += scrape_s
            looks.append((look_end, rates(in_force)))
        newest = snapshot(looks[-1][0], scrape_s, looks[-1][1]) if looks else None
        shown = newest.at if newest else shown
        gains += control_group.add_tick(
            {"p": UnitState(newest, shown, in_force is not control_group.has_lost)}, at, EIGHTH
        )
        if math.floor(at / control_group.window_s) != index:
            index = math.floor(at / control_group.window_s)
            is_static = index % 8 == 4
        in_force = is_static
        at += tick_s
    return gains


@pytest.mark.parametrize(("ratio", "windows"), [(0.01, 100), (0.05, 20), (0.3, 3), (0.5, 2), (0.45, 2)])
def test_one_window_of_each_block_is_drawn(ratio: float, windows: int) -> None:
    control_group = ControlGroup()
    for block in range(20):
        indices = range(block * windows, (block + 1) * windows)
        draws = [control_group.draw(("demo",), index * WINDOW_S + 1.0, ratio) for index in indices]
        assert [draw.engines for draw in draws].count(("demo",)) == 1
        for index, draw in zip(indices, draws, strict=True):
            assert draw.until == ((index + 1) * WINDOW_S if draw.engines else None)


def test_the_law_is_judged_less_often_the_more_windows_there_are() -> None:
    assert windows_at_tests(5, 100) == (5, 7, 10, 14, 20, 28, 40, 56, 79, 100)


def test_over_100_windows_a_law_that_loses_nothing_is_seldom_taken_for_a_loser() -> None:
    assert sum(Traffic(seed).pass_by(100, 0.0) for seed in range(300)) <= 0.05 * 300


def test_a_law_that_gains_is_not_taken_for_a_loser() -> None:
    assert not any(Traffic(seed).pass_by(1000, 0.1) for seed in range(3))


def test_a_loss_of_a_fifth_is_found_within_some_ten_windows() -> None:
    found = [Traffic(seed, MUCH_NOISE).pass_by(15, math.log(0.8)) for seed in range(100)]
    assert sum(found) >= 90


def test_a_control_group_that_is_old_is_as_sensitive() -> None:
    """A week of windows in which the law gained, then it loses 5 %."""
    for seed in range(3):
        traffic = Traffic(seed)
        assert not traffic.pass_by(1400, 0.05)
        assert traffic.pass_by(150, math.log(0.95))


def test_what_a_stand_by_compared_overrules_a_fall_back_only_if_it_shows_a_gain() -> None:
    for gain, stays in ((0.0, True), (math.log(1.5), False)):
        stand_by = Traffic(2)
        assert not stand_by.pass_by(8, gain)
        stand_by.control_group.resume(Comparison(7).digest)
        assert stand_by.control_group.has_lost is stays


def test_windows_from_before_a_fall_back_are_not_compared_after_it() -> None:
    """The windows around the one that decided were drawn under the old state."""
    traffic = Traffic(1)
    while not traffic.pass_by(1, math.log(0.5)):
        assert traffic.control_group.described()["windows"] < 20
    assert traffic.control_group.described()["windows"] == 0


@pytest.mark.parametrize(
    ("tick_s", "scrape_s", "late_s"),
    [(0.5, 0.5, 0.0), (1.0, 1.0, 0.0), (3.0, 3.0, 0.0), (5.0, 5.0, 0.0), (0.5, 2.0, 0.3), (0.5, 1.0, 0.9)],
)
def test_the_gain_is_measured_whatever_the_interval_of_ticks_and_looks(
    tick_s: float, scrape_s: float, late_s: float
) -> None:
    control_group = ControlGroup(scrape_s)
    control_group.set_comparison(Comparison(7))
    gains = measured(
        control_group,
        lambda is_static: {"default": 1000.0 if is_static else 1300.0},
        tick_s=tick_s,
        scrape_s=scrape_s,
        late_s=late_s,
    )
    assert len(gains) >= 8
    assert all(gain == pytest.approx((math.log(1.3), math.log(1.3))) for gain in gains)


def test_what_changes_steadily_cancels() -> None:
    """Throughput grows by a tenth each window at any K: equally many windows before and after count."""
    control_group, index = ControlGroup(), [0]
    control_group.set_comparison(Comparison(7))

    def growing(is_static: bool) -> dict[str, float]:
        del is_static
        index[0] += 1
        return {"default": 1000.0 * 1.1 ** ((index[0] - 1) * 0.5 // WINDOW_S)}

    gains = measured(control_group, growing)
    assert len(gains) >= 8
    assert all(gain == pytest.approx((0.0, 0.0), abs=0.01) for gain in gains)


def one_gains_what_the_other_loses(is_static: bool) -> dict[str, float]:
    return {"few": 100.0, "many": 1000.0} if is_static else {"few": 200.0, "many": 800.0}


@pytest.mark.parametrize(
    ("weights", "gain"),
    [
        ({}, LogGain(math.log(1000 / 1100), math.log((1 / 100 + 1 / 1000) / (1 / 200 + 1 / 800)))),
        ({"few": 10.0}, LogGain(math.log(2800 / 2000), math.log((10 / 100 + 1 / 1000) / (10 / 200 + 1 / 800)))),
        (
            {"default": 10.0, "many": 1.0},
            LogGain(math.log(2800 / 2000), math.log((10 / 100 + 1 / 1000) / (10 / 200 + 1 / 800))),
        ),
    ],
    ids=["alike", "weighted", "a class that the policy does not name is weighted as default"],
)
@pytest.mark.parametrize("objective", Objective)
def test_throughput_and_latency_are_measured_with_the_policys_weights(
    objective: Objective, weights: dict[str, float], gain: LogGain
) -> None:
    control_group = ControlGroup()
    control_group.set_comparison(Comparison(7, objective, weights))
    gains = measured(control_group, one_gains_what_the_other_loses, windows=48)
    assert gains
    assert all(found == pytest.approx(gain) for found in gains)


@pytest.mark.parametrize(
    ("objective", "measure", "loses"), [(Objective.THROUGHPUT, "throughput", True), (Objective.LATENCY, "itl", False)]
)
def test_both_measures_are_told_and_the_objectives_decides(objective: Objective, measure: str, loses: bool) -> None:
    control_group = ControlGroup()
    control_group.set_comparison(Comparison(7, objective))
    measured(control_group, one_gains_what_the_other_loses)
    found = control_group.described()
    assert (found["has_lost"], found["measure"]) == (loses, measure)
    assert found["gain_ratio"] == found[f"{measure}_gain_ratio"]
    assert found["throughput_gain_ratio"]["high"] < 0 < found["itl_gain_ratio"]["low"]


def test_a_clock_that_is_set_back_costs_some_windows_only() -> None:
    control_group = ControlGroup()
    control_group.set_comparison(Comparison(7))

    def rates(is_static: bool) -> dict[str, float]:
        return {"default": 1000.0 if is_static else 1300.0}

    control_group.add_tick({"p": UnitState(snapshot(9e9, 0.5, rates(False)), 9e9, False)}, 9e9, EIGHTH)
    assert len(measured(control_group, rates)) >= 8


def test_a_new_controller_goes_on_fell_back_where_the_same_is_compared() -> None:
    traffic = Traffic(0)
    assert traffic.pass_by(20, math.log(0.7))
    digest = traffic.control_group.described()["compared"]
    for compared, expected in ((Comparison(7), True), (Comparison(3), False)):
        fresh = ControlGroup()
        fresh.resume(digest)
        fresh.set_comparison(compared)
        assert fresh.has_lost is expected
        fresh.set_comparison(Comparison(1))
        assert not fresh.has_lost
    in_stand_by = ControlGroup()
    in_stand_by.set_comparison(Comparison(7))
    in_stand_by.resume(digest)
    assert in_stand_by.has_lost
    again = ControlGroup()  # a canary runs since it began, and it is replaced, too
    again.resume(digest)
    found = again.described()
    assert (found["has_lost"], found["compared"]) == (True, digest)
    gained = Traffic(1)
    gained.pass_by(LEAST_WINDOWS + 3, math.log(1.3))
    gained.control_group.resume(digest)
    assert not gained.control_group.has_lost


def test_each_engine_has_windows_of_its_own_and_all_count() -> None:
    """Two engines of unlike speed: a window is compared with those of its own engine alone."""
    control_group, drawn = ControlGroup(), {"one": 4, "two": 6}
    control_group.set_comparison(Comparison(7))
    gains = []
    for index in range(40):
        begun_at = index * WINDOW_S
        for at, has_snapshot in ((begun_at, False), (begun_at + 3.0, True)):
            seen = {}
            for name, speed in (("one", 1.0), ("two", 3.0)):
                is_static = index % 8 == drawn[name]
                rate = speed * (1000.0 if is_static else 1200.0)
                taken = snapshot(at, 0.5, {"default": rate}) if has_snapshot else None
                seen[name] = UnitState(taken, at, is_static)
            gains += control_group.add_tick(seen, at, EIGHTH)
    assert len(gains) >= 8
    assert all(gain.throughput == pytest.approx(math.log(1.2)) for gain in gains)
    assert control_group.described()["windows"] == len(gains)
    control_group.add_tick({"one": seen["one"]}, at + 1.0, EIGHTH)
    assert control_group._switchback._units.keys() == {"one"}, "an engine that is gone leaves its windows"


def test_engines_are_drawn_independently() -> None:
    control_group, count = ControlGroup(), 4000
    both = [control_group.draw(("b", "a"), index * WINDOW_S, 0.25).engines for index in range(count)]
    share = {drawn: both.count(drawn) / count for drawn in set(both)}
    assert share == {
        (): pytest.approx(0.5625, abs=0.03), ("a",): pytest.approx(0.1875, abs=0.03),
        ("b",): pytest.approx(0.1875, abs=0.03), ("a", "b"): pytest.approx(0.0625, abs=0.03),
    }  # fmt: skip
    for ratio in (0.0, 1e-309):
        assert not any(control_group.draw(("a", "b"), index * 4.0, ratio).engines for index in range(100))


def test_while_the_time_of_windows_stands_still_nothing_is_added_to_them() -> None:
    """Redis does not answer: an engine has ended its window by itself, and the schedule in force still draws it."""
    found = []
    for is_redis_up in (True, False):
        control_group, gains = ControlGroup(), []
        control_group.set_comparison(Comparison(7))
        for index in range(9):
            is_static = index == 4
            begun_at = index * WINDOW_S
            at = begun_at + 3.0
            own = snapshot(at, 0.5, {"default": 1000.0 if is_static else 1300.0})
            gains += control_group.add_tick({"p": UnitState(None, begun_at, is_static)}, begun_at, EIGHTH)
            gains += control_group.add_tick({"p": UnitState(own, at, is_static)}, at, EIGHTH)
            if is_static and not is_redis_up:
                other = UnitState(snapshot(at + 0.1, 0.1, {"default": 1300.0}), at + 0.1, is_static)
                gains += control_group.add_tick({"p": other}, at, EIGHTH)
        found.append(gains)
    assert found[0] == found[1]
    assert len(found[0]) == 1

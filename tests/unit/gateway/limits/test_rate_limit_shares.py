"""The shares of replicas in a key's limits, and how far over its limit a key can get."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpilot.gateway.engines.redis_watch import EXCHANGE_S
from specpilot.gateway.limits.rate_limit import MINUTE_S, PRIOR, Rates, Shares, divide
from specpilot.policy.api_key import GatewayUsage
from tests.support.limited_keys import L, key, places


@given(st.dictionaries(st.sampled_from("abcdef"), st.dictionaries(st.sampled_from("kl"), st.floats(0, 2)), min_size=1))
def test_the_shares_of_one_moment_add_up_to_one(demands: dict[str, dict[str, float]]) -> None:
    statements = [GatewayUsage(name, demand) for name, demand in demands.items()]
    shares = [divide(name, statements) for name in demands]
    for key_id in "klm":
        assert sum(item.of(key_id) for item in shares) == pytest.approx(1)
        assert all(item.of(key_id) > 0 for item in shares)
    for one, other in zip(demands, [*demands][1:], strict=False):
        more = demands[one].get("k", 0) > demands[other].get("k", 0)
        if more and "k" in demands[one]:
            assert divide(one, statements).of("k") >= divide(other, statements).of("k")


@dataclass
class Fleet:
    """Replicas that state and read every second, each at its own moment; and what they let through."""

    count: int
    stated: dict[str, dict[str, float]] = field(default_factory=dict)
    is_store_up: bool = True
    passed: list[float] = field(default_factory=list)
    moved: float = 0.0

    def __post_init__(self) -> None:
        self.replicas = [Rates() for _ in range(self.count)]
        self.names = [f"r{index}" for index in range(self.count)]
        self.stated = {name: {} for name in self.names}
        for index in range(self.count):
            self.replicas[index].adopt(self.shares(index), 0.0)

    def shares(self, index: int) -> Shares:
        return divide(self.names[index], [GatewayUsage(name, demand) for name, demand in self.stated.items()])

    def exchange(self, index: int, now: float) -> None:
        if not self.is_store_up:
            return
        before = [self.shares(other).of("k") for other in range(self.count)]
        self.stated[self.names[index]] = self.replicas[index].demands(now)
        after = [self.shares(other).of("k") for other in range(self.count)]
        self.moved += sum(max(0.0, old - new) for old, new in zip(before, after, strict=True))
        self.replicas[index].adopt(self.shares(index), now)

    def ask(self, index: int, now: float) -> None:
        if self.replicas[index].meter(key(), 1, now).admit(1, now) is None:
            self.passed.append(now)

    def run(self, seconds: list[int], per_s: int, start: float = 0.0) -> None:
        """In each second `per_s` requests come to the replica that `seconds` names, evenly."""
        for second, target in enumerate(seconds):
            for step in range(per_s):
                now = start + second + step / per_s
                for index in range(self.count):
                    if step == per_s * index // self.count:
                        self.exchange(index, now)
                self.ask(target % self.count, now)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20)), min_size=6, max_size=12))
def test_a_fleet_keeps_to_the_bound_wherever_the_requests_go(count: int, visits: list[tuple[int, int]]) -> None:
    seconds = [target for target, stay_s in visits for _ in range(stay_s)][:120]
    fleet = Fleet(count)
    fleet.run(seconds, per_s=40)  # four times the limit
    lasted_s = len(seconds)
    beginnings = (count - 1) * max(1.0, PRIOR * L)
    bound = L + L * lasted_s / MINUTE_S + fleet.moved * L * EXCHANGE_S / MINUTE_S + beginnings + count
    assert len(fleet.passed) <= bound
    # And it is no less useful for it: what it did not serve was moving.
    if count == 1:
        assert len(fleet.passed) >= min(40 * lasted_s, L + L * (lasted_s - 1) / MINUTE_S)


def test_a_fleet_gives_most_of_the_limit_to_a_client_that_stays_with_one_replica() -> None:
    fleet = Fleet(4)
    fleet.run([0] * 120, per_s=20)
    late = sum(1 for at in fleet.passed if at >= 60)
    assert 0.93 * L <= late <= L


def test_a_fleet_serves_a_balanced_client_all_of_the_limit() -> None:
    fleet = Fleet(4)
    now = 0.0
    for second in range(180):
        for index in range(4):
            fleet.exchange(index, now)
        for step in range(20):  # twice the limit
            now = second + step / 20
            fleet.ask(step % 4, now)
    late = sum(1 for at in fleet.passed if at >= 120)
    assert 0.99 * L <= late <= L + 4


def test_while_the_store_is_gone_the_last_shares_hold_and_add_up_to_one() -> None:
    fleet = Fleet(3)
    fleet.run([0, 1, 2] * 20, per_s=30)
    fleet.is_store_up = False
    before = len(fleet.passed)
    fleet.run([0, 1, 1] * 40, per_s=30, start=60.0)
    moving = L * EXCHANGE_S / MINUTE_S
    assert len(fleet.passed) - before <= L * 2 + moving + 3
    held = sum(replica._shares.of("k") for replica in fleet.replicas)
    assert held == pytest.approx(1, abs=0.2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20), min_size=3, max_size=12),
)
def test_a_fleet_keeps_to_its_places_but_for_one_a_replica_and_for_those_that_moved(
    limit: int, count: int, seconds: list[list[tuple[int, bool]]]
) -> None:
    """In each second requests come to replicas or end there; all replicas exchange at once, so none is out of date."""
    fleet = Fleet(count)
    under_way = [0] * count
    for second, visits in enumerate(seconds):
        now = float(second)
        for index in range(count):
            fleet.stated[fleet.names[index]] = fleet.replicas[index].demands(now)
        for index in range(count):
            fleet.replicas[index].adopt(fleet.shares(index), now)
        meters = [replica._meters.get("k") for replica in fleet.replicas]
        shares = [fleet.replicas[i]._shares.of("k") if m is None else m.lasting_share for i, m in enumerate(meters)]
        held = [max(1, round(share * limit)) for share in shares]
        assert sum(held) <= limit + count
        over = [max(0, running - place) for running, place in zip(under_way, held, strict=True)]
        for target, is_end in visits:
            index = target % count
            if is_end and under_way[index]:
                under_way[index] -= 1
                fleet.replicas[index].settle("k", 1, 1, now)
            elif fleet.replicas[index].meter(places(limit), 1, now).admit(1, now) is None:
                under_way[index] += 1
            assert under_way[index] <= held[index] + over[index]


def test_one_busy_replica_gets_all_places_and_two_share_them() -> None:
    fleet = Fleet(4)
    passed = [0, 0, 0, 0]

    def run(targets: tuple[int, ...], start: int) -> None:
        for second in range(start, start + 10):
            for index in targets:
                for _ in range(8):
                    passed[index] += fleet.replicas[index].meter(places(8), 1, second).admit(1, second) is None
            for index in range(4):
                fleet.exchange(index, float(second))

    run((0,), 0)
    assert passed == [8, 0, 0, 0]
    for _ in range(8):
        fleet.replicas[0].settle("k", 1, 1, 10.0)
    for index in range(4):
        fleet.exchange(index, 200.0)
    run((1, 2), 210)
    assert passed[1:] == [4, 4, 0]

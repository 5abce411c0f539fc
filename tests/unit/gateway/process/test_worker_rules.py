from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specpilot.gateway.process.worker_rules import (
    HEALTHY_S,
    PAUSE_LIMIT_S,
    START_LIMIT_S,
    Action,
    Give,
    Log,
    Order,
    Start,
    Unlisten,
    WorkerRules,
)


def deeds(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Log)]


def alone(worker: int, slot: int) -> list[Action]:
    """The start of a worker in a slot where no other serves."""
    return [Start(worker, slot), Give(worker, Order.SKIP_REDIS)]


def serving(slots: int = 2) -> WorkerRules:
    """`slots` workers that serve since time 0."""
    rules = WorkerRules(slots, 40.0)
    assert deeds(rules.due(0.0)) == alone(1, 0)
    assert deeds(rules.ready(1, 0.0)) == []
    started = deeds(rules.due(0.0))
    assert started == [action for slot in range(1, slots) for action in alone(slot + 1, slot)]
    for slot in range(1, slots):
        rules.ready(slot + 1, 0.0)
    assert rules.wait_s(0.0) is None
    return rules


def test_the_first_worker_starts_alone_and_its_fault_is_the_programs() -> None:
    rules = WorkerRules(4, 40.0)
    assert rules.due(0.0) == alone(1, 0)
    assert rules.due(1.0) == []
    assert rules.ended(1, 2, 1.0) == []  # it has said what is wrong itself
    assert rules.is_over
    assert rules.status == 2


def test_a_first_worker_that_dies_without_a_word_is_named() -> None:
    rules = WorkerRules(2, 40.0)
    rules.due(0.0)
    (said,) = rules.ended(1, -9, 0.5)
    assert isinstance(said, Log)
    assert "status -9" in said.text
    assert "giving up" in said.text
    assert rules.is_over
    assert rules.status == 1


def test_a_dead_worker_is_replaced_and_its_slot_stops_listening() -> None:
    rules = serving()
    assert deeds(rules.ended(2, -9, 5.0)) == [Unlisten(1)]
    assert rules.wait_s(5.0) == 1.0
    assert rules.due(5.5) == []
    assert rules.due(6.0) == alone(3, 1)


def test_pauses_double_up_to_their_limit_and_end_with_a_long_life() -> None:
    rules = serving()
    now, worker, pauses = 0.0, 2, []
    for _ in range(8):
        rules.ended(worker, 1, now)
        pauses.append(rules.wait_s(now))
        now += pauses[-1] or 0.0
        start, _ = rules.due(now)
        assert isinstance(start, Start)
        worker = start.worker
        rules.ready(worker, now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, PAUSE_LIMIT_S, PAUSE_LIMIT_S, PAUSE_LIMIT_S]
    rules.ended(worker, 1, now + HEALTHY_S)
    assert rules.wait_s(now + HEALTHY_S) == 0.0


def test_while_one_serves_failed_starts_are_tried_again() -> None:
    rules = serving()
    rules.ended(2, 1, 0.0)
    rules.due(1.0)
    assert deeds(rules.ended(3, 2, 1.2)) == [Unlisten(1)]
    assert not rules.is_stopping
    assert rules.due(3.2) == alone(4, 1)


def test_when_none_serves_a_failed_start_ends_it() -> None:
    rules = serving()
    rules.ended(1, -9, 0.0)
    rules.ended(2, -9, 0.0)
    assert rules.due(1.0) == [*alone(3, 0), *alone(4, 1)]
    assert not rules.is_stopping
    rules.ended(3, 1, 1.1)  # the other may still make it
    assert not rules.is_stopping
    rules.ended(4, 1, 1.1)
    assert rules.is_over
    assert rules.status == 1


def test_reload_replaces_one_after_another_and_a_worker_leaves_only_when_the_next_is_ready() -> None:
    rules = serving()
    assert deeds(rules.reload(9.0)) == [Start(3, 0)]
    assert deeds(rules.ready(3, 10.0)) == [Give(1, Order.RETIRE), Start(4, 1)]
    assert deeds(rules.ended(1, 0, 11.0)) == []
    assert deeds(rules.ready(4, 12.0)) == [Give(2, Order.RETIRE)]
    assert deeds(rules.ended(2, -9, 13.0)) == []
    assert rules.wait_s(14.0) is None


def test_a_reload_whose_worker_does_not_start_leaves_the_old_ones() -> None:
    rules = serving()
    rules.reload(9.0)
    assert deeds(rules.ended(3, 2, 9.5)) == []
    assert rules.wait_s(10.0) is None
    assert not rules.is_stopping


def test_a_reload_replaces_a_worker_that_is_starting_once_that_is_ready() -> None:
    rules = serving()
    rules.ended(2, -9, 5.0)
    assert deeds(rules.due(6.0)) == alone(3, 1)
    assert deeds(rules.reload(6.1)) == [Start(4, 0)]  # 3 may have read the old settings
    assert deeds(rules.ready(3, 6.5)) == []
    assert deeds(rules.ready(4, 7.0)) == [Give(1, Order.RETIRE), Start(5, 1)]
    assert deeds(rules.ready(5, 8.0)) == [Give(3, Order.RETIRE)]
    assert rules.wait_s(9.0) is None


def test_a_reload_replaces_the_first_worker_that_is_starting() -> None:
    rules = WorkerRules(2, 40.0)
    rules.due(0.0)
    assert deeds(rules.reload(0.1)) == []
    assert deeds(rules.ready(1, 1.0)) == [Start(2, 0)]
    assert deeds(rules.due(1.0)) == alone(3, 1)  # it reads the new settings
    assert deeds(rules.ready(3, 2.0)) == []
    assert deeds(rules.ready(2, 2.0)) == [Give(1, Order.RETIRE)]
    assert rules.wait_s(3.0) is None


def test_a_worker_that_starts_after_the_reload_was_asked_for_is_not_replaced_again() -> None:
    rules = serving()
    rules.ended(2, -9, 5.0)
    assert deeds(rules.reload(5.5)) == [Start(3, 0)]
    assert deeds(rules.due(6.0)) == alone(4, 1)
    assert deeds(rules.ready(4, 6.5)) == []
    assert deeds(rules.ready(3, 7.0)) == [Give(1, Order.RETIRE)]
    assert rules.wait_s(9.0) is None


def test_a_second_reload_replaces_what_the_first_has_started() -> None:
    rules = serving()
    rules.reload(9.0)
    assert deeds(rules.reload(9.1)) == []
    assert deeds(rules.ready(3, 10.0)) == [Give(1, Order.RETIRE), Start(4, 0)]
    assert deeds(rules.ready(4, 11.0)) == [Give(3, Order.RETIRE), Start(5, 1)]
    assert deeds(rules.ready(5, 12.0)) == [Give(2, Order.RETIRE)]


def test_a_worker_that_fails_on_old_settings_does_not_end_a_newer_reload() -> None:
    rules = serving()
    rules.reload(9.0)
    rules.reload(9.1)  # the settings that 3 is about to fail on have been corrected
    assert deeds(rules.ended(3, 2, 9.5)) == [Start(4, 0)]
    assert deeds(rules.ended(4, 2, 9.9)) == []
    assert rules.wait_s(10.0) is None


def test_a_worker_that_dies_while_its_successor_starts_hurries_that_and_does_not_end_the_reload() -> None:
    rules = serving()
    rules.reload(9.0)
    assert deeds(rules.ended(1, -9, 9.5)) == [Give(3, Order.SKIP_REDIS), Start(4, 1)]
    assert deeds(rules.ready(3, 10.0)) == []
    assert deeds(rules.ready(4, 11.0)) == [Give(2, Order.RETIRE)]


def test_a_leaving_worker_keeps_no_slot_listening() -> None:
    rules = serving()
    rules.reload(9.0)
    rules.ready(3, 10.0)
    assert deeds(rules.ended(3, -9, 11.0)) == [Unlisten(0)]
    assert Start(5, 0) in rules.due(12.0)


def test_stop_tells_everybody_then_kills() -> None:
    rules = serving(3)
    assert rules.stop(5.0) == [Give(1, Order.STOP), Give(2, Order.STOP), Give(3, Order.STOP)]
    assert rules.ended(2, 0, 6.0) == []
    assert rules.stop(7.0) == [Give(1, Order.STOP), Give(3, Order.STOP)]  # a second signal is passed on too
    assert rules.due(44.0) == []
    assert rules.due(45.0) == [Give(1, Order.KILL), Give(3, Order.KILL)]
    rules.ended(1, -9, 45.1)
    assert not rules.is_over
    rules.ended(3, -9, 45.1)
    assert rules.is_over
    assert rules.status == 0


def test_a_worker_that_never_becomes_ready_is_killed() -> None:
    rules = serving()
    rules.ended(2, 1, 0.0)
    rules.due(1.0)
    assert rules.due(1.0 + START_LIMIT_S - 1) == []
    assert deeds(rules.due(1.0 + START_LIMIT_S)) == [Give(3, Order.KILL)]


class Crew(RuleBasedStateMachine):
    """Workers that become ready, die and are replaced in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = WorkerRules(3, 40.0)
        self.slot_of: dict[int, int] = {}
        self.ready: set[int] = set()
        self.retired: set[int] = set()
        self.hurried: set[int] = set()
        self.now = 0.0
        self.perform(self.rules.due(0.0))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self.slot_of[action.worker] = action.slot
            elif not isinstance(action, Give):
                continue
            elif action.order is Order.SKIP_REDIS:
                self.hurried.add(action.worker)
                assert not self.serves_in(self.slot_of[action.worker])
            elif action.order is Order.RETIRE:
                self.retired.add(action.worker)
                assert self.serves_in(self.slot_of[action.worker]), "somebody serves in the slot already"
            else:
                assert action.worker in self.slot_of

    def here(self, slot: int) -> list[int]:
        return [item for item, where in self.slot_of.items() if where == slot and item not in self.retired]

    def serves_in(self, slot: int) -> bool:
        return any(item in self.ready for item in self.here(slot))

    def one_of(self, which: int) -> int:
        return sorted(self.slot_of)[which % len(self.slot_of)]

    @precondition(lambda self: self.slot_of)
    @rule(which=st.integers(0, 10))
    def becomes_ready(self, which: int) -> None:
        worker = self.one_of(which)
        if worker not in self.ready:
            self.ready.add(worker)
            self.perform(self.rules.ready(worker, self.now))

    @precondition(lambda self: self.slot_of)
    @rule(which=st.integers(0, 10), status=st.sampled_from([-9, 0, 1, 2]))
    def ends(self, which: int, status: int) -> None:
        worker = self.one_of(which)
        del self.slot_of[worker]
        self.ready.discard(worker)
        self.retired.discard(worker)
        self.perform(self.rules.ended(worker, status, self.now))

    @rule(later_s=st.floats(0.0, 70.0))
    def time_passes(self, later_s: float) -> None:
        self.now += later_s
        self.perform(self.rules.due(self.now))

    @rule()
    def is_told_to_reload(self) -> None:
        self.perform(self.rules.reload(self.now))

    @precondition(lambda self: self.now > 200.0)
    @rule()
    def is_told_to_stop(self) -> None:
        self.perform(self.rules.stop(self.now))

    @invariant()
    def each_slot_has_a_worker_or_a_time_for_one(self) -> None:
        assert self.rules.is_over == (self.rules.is_stopping and not self.slot_of)
        if self.rules.is_stopping or not self.ready:
            return
        for slot in range(3):
            assert len(self.here(slot)) <= 2
            assert self.here(slot) or self.rules.wait_s(self.now) is not None

    @invariant()
    def no_worker_waits_for_nobody(self) -> None:
        for worker in set(self.slot_of) - self.ready - self.hurried:
            assert self.rules.is_stopping or self.serves_in(self.slot_of[worker])


TestCrew = Crew.TestCase

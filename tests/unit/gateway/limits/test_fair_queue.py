"""Fair shares, as properties of any arrivals and departures."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.limits.fair_queue import FairQueue

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5, "d": 7.0}
names = st.sampled_from(sorted(WEIGHTS))


@dataclass(frozen=True)
class Item:
    name: str
    number: int


@given(st.lists(st.one_of(names, st.just("take"), st.tuples(st.just("drop"), st.integers(0, 30))), max_size=200))
def test_work_conserving_and_first_come_first_served_within_a_class(steps: list[str | tuple[str, int]]) -> None:
    queue: FairQueue[Item] = FairQueue()
    waiting: dict[str, list[Item]] = {name: [] for name in WEIGHTS}
    for number, step in enumerate(steps):
        if step == "take":
            taken = queue.pop()
            assert (taken is None) == (not any(waiting.values()))
            if taken is not None:
                assert waiting[taken.name].pop(0) == taken
        elif isinstance(step, tuple):
            everyone = [item for items in waiting.values() for item in items]
            if everyone:
                gone = everyone[step[1] % len(everyone)]
                queue.drop(gone, gone.name)
                queue.drop(gone, gone.name)
                waiting[gone.name].remove(gone)
        else:
            item = Item(step, number)
            queue.put(item, step, WEIGHTS[step], 0)
            waiting[step].append(item)
        assert len(queue) == sum(map(len, waiting.values()))
        for name, items in waiting.items():
            assert queue.length(name) == len(items)
            assert queue.first(name) == (items[0] if items else None)


@given(
    st.dictionaries(names, st.floats(0.01, 100), min_size=2),
    st.lists(st.one_of(names, st.just("take")), max_size=300),
)
def test_classes_that_wait_all_the_time_share_by_weight_within_one_request_each(
    weights: dict[str, float], steps: list[str]
) -> None:
    queue: FairQueue[Item] = FairQueue()
    first, second = sorted(weights)[:2]
    # Others come and go as `steps` says; these two wait from some moment on, and then never stop waiting.
    for number, step in enumerate(steps[:50]):
        if step == "take":
            queue.pop()
        elif step in weights:
            queue.put(Item(step, number), step, weights[step], 0)
    for name in (first, second):
        for number in range(500):
            queue.put(Item(name, 1000 + number), name, weights[name], 0)
    served = {first: 0, second: 0}
    bound = (1 / weights[first] + 1 / weights[second]) * (1 + 1e-9)
    for number, step in enumerate(steps):
        if step in weights and step not in served:
            queue.put(Item(step, 5000 + number), step, weights[step], 0)
            continue
        taken = queue.pop()
        assert taken is not None
        if taken.name in served:
            served[taken.name] += 1
        assert abs(served[first] / weights[first] - served[second] / weights[second]) <= bound


@given(st.lists(st.tuples(names, st.integers(-2, 2)), min_size=1, max_size=60))
def test_priorities_are_strict(arrivals: list[tuple[str, int]]) -> None:
    queue: FairQueue[Item] = FairQueue()
    priorities: dict[str, int] = {}
    for number, (name, priority) in enumerate(arrivals):
        priorities.setdefault(name, priority)
        queue.put(Item(name, number), name, WEIGHTS[name], priorities[name])
    order = [priorities[item.name] for item in iter(queue.pop, None)]
    assert order == sorted(order, reverse=True)
    assert len(order) == len(arrivals)


def test_a_class_saves_nothing_up_while_it_does_not_wait() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(100):
        queue.put(Item("a", number), "a", 1.0, 0)
    for _ in range(50):
        queue.pop()
    for number in range(50):
        queue.put(Item("b", number), "b", 1.0, 0)
    taken = [item.name for item in (queue.pop() for _ in range(20)) if item is not None]
    assert taken.count("b") in {10, 11}

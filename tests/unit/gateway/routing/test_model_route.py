from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.model_route import first_serving, models_for
from specpilot.policy.model_routes import ModelRoute, Target

SESSIONS = [f"session {number}" for number in range(4000)]


def split(**weights: float) -> ModelRoute:
    return ModelRoute(tuple(Target(model, weight) for model, weight in weights.items()))


def homes(route: ModelRoute, name: str = "chat") -> list[str]:
    return [models_for(name, route, session, lambda: 0)[0] for session in SESSIONS]


def never() -> int:
    raise AssertionError("nothing is drawn for a session")


def test_a_session_has_one_model_whatever_is_drawn_and_however_the_targets_are_ordered() -> None:
    route, other_way = split(a=1, b=2, c=3), split(c=3, b=2, a=1)
    for session in SESSIONS[:200]:
        assert models_for("chat", route, session, never) == models_for("chat", other_way, session, never)
    assert homes(route) != homes(route, "other name"), "names split their sessions apart"


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 1.0}, {"a": 0.2, "b": 0.3, "c": 0.5}])
def test_sessions_and_single_requests_spread_by_weight(weights: dict[str, float]) -> None:
    route, draw = split(**weights), Random(5).getrandbits
    alone = [models_for("chat", route, None, lambda: draw(64))[0] for _ in SESSIONS]
    for found in (Counter(homes(route)), Counter(alone)):
        for model, weight in weights.items():
            assert found[model] / len(SESSIONS) == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_a_change_of_weights_moves_only_sessions_to_the_model_that_gained() -> None:
    before, after = homes(split(a=9, b=1)), homes(split(a=5, b=5))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {("a", "b")}
    assert len(moved) / len(SESSIONS) == pytest.approx(0.4, abs=0.03)
    assert [old for old in homes(split(a=1, b=1, c=1)) if old == "c"]


@given(st.integers(0, 2**64 - 1), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=16), st.text() | st.none())
def test_some_target_is_always_chosen(draw: int, weights: list[float], session: str | None) -> None:
    route = ModelRoute(tuple(Target(f"m{at}", weight) for at, weight in enumerate(weights)))
    (found,) = models_for("chat", route, session, lambda: draw)
    assert found in {target.model for target in route.split}


def test_the_fall_backs_follow_in_order_without_the_chosen_one() -> None:
    route = ModelRoute((Target("big"),), ("small", "big", "tiny"))
    assert models_for("chat", route, None, never) == ("big", "small", "tiny")
    assert models_for("big", ModelRoute(fallback=("small",)), None, never) == ("big", "small")


def test_the_first_that_has_an_engine_serves_and_where_none_has_the_chosen_one() -> None:
    models = ("big", "small", "tiny")
    assert first_serving(models, {"big", "tiny"}.__contains__) == 0
    assert first_serving(models, {"tiny"}.__contains__) == 2
    assert first_serving(models, set[str]().__contains__) == 0

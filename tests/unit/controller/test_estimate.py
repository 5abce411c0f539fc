import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.estimate import ModelAcceptance
from controller.tuning import Tuning

CODE = (0.9, 0.8, 0.7, 0.7, 0.6)
CHAT = (0.5, 0.4, 0.4, 0.3, 0.3)


def drafts(rng: np.random.Generator, name: str, count: int, k: int, truth: tuple[float, ...]) -> tuple[dict, dict]:
    trials, accepts, alive = {}, {}, count
    for position in range(1, k + 1):
        trials[name, position] = float(alive)
        alive = int(rng.binomial(alive, truth[position - 1]))
        accepts[name, position] = float(alive)
    return trials, accepts


def test_nothing_known_is_none() -> None:
    model = ModelAcceptance()
    assert model.estimate("code", 5) is None
    model.learn({("code", 1): 10.0}, {("code", 1): 9.0}, 1.0)
    assert model.estimate("code", 5) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 1000))
def test_mixed_k_gives_the_same_survival(depths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = ModelAcceptance(Tuning(memory_trials=1e9, memory_floor_s=1e9, memory_ceiling_s=1e9, detect_changes=False))
    for k in [*depths, 5]:
        model.learn(*drafts(rng, "code", 4000, k, CODE), 1.0)
    found = model.estimate("code", 5)
    assert found is not None
    np.testing.assert_allclose(found.survival, np.cumprod(CODE), atol=0.05)
    assert (found.low <= found.survival).all()
    assert (found.survival <= found.high).all()
    assert (np.diff(found.survival) <= 0).all()


def test_past_the_last_observed_position_the_last_acceptance_holds_and_the_interval_widens() -> None:
    model = ModelAcceptance()
    model.learn(*drafts(np.random.default_rng(1), "code", 3000, 2, CODE), 1.0)
    found = model.estimate("code", 5)
    assert found is not None
    assert found.observed == 2
    np.testing.assert_allclose(found.hazards[2:], found.hazards[1], atol=0.02)
    width = (found.high - found.low) / found.survival
    assert width[3] > 3 * width[1]


def test_a_thin_class_looks_like_its_model() -> None:
    model = ModelAcceptance()
    model.learn(*drafts(np.random.default_rng(2), "code", 3000, 5, CODE), 1.0)
    unseen = model.estimate("new", 5)
    known = model.estimate("code", 5)
    assert unseen is not None
    assert known is not None
    np.testing.assert_allclose(unseen.survival, known.survival, atol=0.03)


def test_a_jump_is_followed_within_two_looks() -> None:
    rng = np.random.default_rng(3)
    model = ModelAcceptance()
    for _ in range(60):
        model.learn(*drafts(rng, "code", 300, 5, CODE), 1.0)
    assert model.jumps == {}
    for _ in range(2):
        model.learn(*drafts(rng, "code", 300, 5, CHAT), 1.0)
    assert model.jumps == {"code": 1}
    found = model.estimate("code", 5)
    assert found is not None
    np.testing.assert_allclose(found.survival, np.cumprod(CHAT), atol=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_steady_traffic_raises_no_alarm_in_ten_minutes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = ModelAcceptance()
    for _ in range(600):
        model.learn(*drafts(rng, "code", 200, 5, CODE), 1.0)
    assert model.jumps == {}


def test_without_detection_the_memory_fades_slowly() -> None:
    rng = np.random.default_rng(4)
    model = ModelAcceptance(Tuning(detect_changes=False))
    for truth in [CODE] * 30 + [CHAT] * 2:
        model.learn(*drafts(rng, "code", 100, 5, truth), 1.0)
    found = model.estimate("code", 5)
    assert found is not None
    assert found.survival[0] > 0.7


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(-1, 70)), st.floats(0, 1e9), max_size=20))
def test_any_counts_give_probabilities(trials: dict[tuple[str, int], float]) -> None:
    model = ModelAcceptance()
    for _ in range(3):
        model.learn(trials, {key: value * 2 for key, value in trials.items()}, 1.0)
    found = model.estimate("a", 7)
    if found is not None:
        assert ((found.survival >= 0) & (found.survival <= 1)).all()

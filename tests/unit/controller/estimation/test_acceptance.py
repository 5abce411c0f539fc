import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.policy.acceptance import MIDDLES
from specpilot.policy.bands import BANDS, band_of


def learned(band: int, trials: list[float], accepts: list[float], times: int = 1) -> ModelAcceptance:
    model = ModelAcceptance()
    for _ in range(times):
        model.learn(
            {(band, i + 1): count for i, count in enumerate(trials)},
            {(band, i + 1): count for i, count in enumerate(accepts)},
        )
    return model


def test_a_band_without_a_draft_is_known_by_what_it_means() -> None:
    conditional = ModelAcceptance().conditional()[:, :3]
    assert [band_of(p) for p in MIDDLES] == list(range(BANDS))
    assert np.allclose(conditional, MIDDLES[:, None])


def test_a_position_is_its_trials_and_twenty_of_the_bands_mean() -> None:
    model = learned(3, [100.0, 50.0], [50.0, 10.0])
    mean = (60 + 20 * MIDDLES[3]) / 170
    assert model.conditional()[3, :2] == pytest.approx([(50 + 20 * mean) / 120, (10 + 20 * mean) / 70])


def test_what_a_cut_draft_does_not_say_stays_unsaid() -> None:
    """Drafts at K = 1 affect position 2 only through the band's mean."""
    assert learned(5, [1000.0], [700.0]).described(2)[5]["trials"] == [1000.0, 0.0]


def test_old_evidence_fades_with_new_trials_and_never_with_time() -> None:
    model = learned(2, [500.0], [0.0], times=20)
    before = model.conditional()[2, 0]
    model.learn({}, {})
    assert model.conditional()[2, 0] == before
    for _ in range(8):
        model.learn({(2, 1): 1000.0}, {(2, 1): 1000.0})
    assert model.conditional()[2, 0] > 0.9


def test_bands_do_not_colour_one_another() -> None:
    alone, both = learned(2, [100.0], [20.0]), learned(2, [100.0], [20.0])
    both.learn({(7, 1): 5000.0}, {(7, 1): 5000.0})
    assert both.conditional()[2] == pytest.approx(alone.conditional()[2])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=30))
def test_any_counts_give_probabilities(counts: list[tuple[int, int, float, float]]) -> None:
    model = ModelAcceptance()
    model.learn({(b, i): t for b, i, t, _ in counts}, {(b, i): a for b, i, _, a in counts})
    conditional = model.conditional()
    assert ((conditional >= 0) & (conditional <= 1)).all()

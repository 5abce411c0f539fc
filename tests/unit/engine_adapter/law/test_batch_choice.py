"""K of a batch with latency goals: goals out of reach, and goals that pull apart."""

from collections import Counter

import pytest

from specpilot.engine_adapter.law.batch_choice import Choice, chosen
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT
from specpilot.engine_adapter.law.step_worth import keeps_slos, worth_of_step
from specpilot.policy.bands import BANDS
from specpilot.policy.schedule import ClassGuidance
from tests.unit.engine_adapter.law.test_forecast import HIGH, K_MAX, LOW, estimates, requirements

CHAT, JSON = 1 << REQUIREMENT_AT | LOW, 2 << REQUIREMENT_AT | HIGH
COUNTS = Counter({CHAT: 4, JSON: 12})


def choice(chat_ms: float | None, json_ms: float | None) -> Choice:
    """With K = 0 a step takes 11.6 ms. With the longest drafts for JSON it takes 17.4 ms, 4.2 ms a token of JSON."""
    chat, json = ClassGuidance(k_max=8, tpot_bound_ms=chat_ms), ClassGuidance(k_max=9, tpot_bound_ms=json_ms)
    asked = requirements(chat=chat, json=json)
    return chosen(estimates(), asked, COUNTS)


def latencies_ms(found: Choice) -> list[float]:
    step = found.step()
    return [1e3 * step.seconds / length for length in step.lengths]


def test_bounds_that_are_kept_by_far_change_nothing() -> None:
    free, kept = choice(None, None), choice(24.0, 6.0)
    assert (free.k_of[CHAT], free.k_of[JSON], free.fastest) == (0, K_MAX, {})
    assert (kept.k_of, kept.fastest) == (free.k_of, {})


def test_a_goal_that_no_k_keeps_does_not_hold_the_others_back() -> None:
    hopeless, free = choice(8.0, 4.5), choice(None, 4.5)
    assert [hopeless.k_of[code] for code in COUNTS] == [free.k_of[code] for code in COUNTS]
    assert keeps_slos([free.groups[1]], free.step()._replace(lengths=free.step().lengths[1:]))


@pytest.mark.parametrize("json_ms", [4.3, 5.0, 7.0, None])
@pytest.mark.parametrize("chat_ms", [10.0, 12.0, 15.0])
def test_goals_that_pull_apart_are_weighed(chat_ms: float, json_ms: float | None) -> None:
    found = choice(chat_ms, json_ms)
    every = [found.step({CHAT: low, JSON: high}) for low in range(K_MAX + 1) for high in range(K_MAX + 1)]
    assert worth_of_step(found.groups, found.step()) == pytest.approx(
        max(worth_of_step(found.groups, step) for step in every)
    )


def test_an_empty_band_has_k_of_the_nearest_one_with_decodes() -> None:
    asked = requirements(chat=ClassGuidance(k_max=8, tpot_bound_ms=12.0), json=ClassGuidance(tpot_bound_ms=4.0))
    found = chosen(estimates(), asked, COUNTS + Counter({CHAT ^ LOW | HIGH: 2}))
    of_chat = [found.k_of[1 << REQUIREMENT_AT | band] for band in range(BANDS)]
    middle = (LOW + HIGH) // 2 + 1
    assert of_chat[LOW] != of_chat[HIGH]
    assert of_chat == [of_chat[LOW]] * middle + [of_chat[HIGH]] * (BANDS - middle)


def test_a_quick_choice_climbs_from_the_last_one() -> None:
    first = choice(14.0, 5.0)
    assert first.fastest
    assert first.estimates is not None
    grown = COUNTS + Counter({CHAT: 1})
    quick = chosen(first.estimates, first.requirements, grown, first)
    assert quick.fastest == first.fastest
    anew = chosen(first.estimates, first.requirements, grown)
    assert worth_of_step(quick.groups, quick.step()) == pytest.approx(worth_of_step(anew.groups, anew.step()))

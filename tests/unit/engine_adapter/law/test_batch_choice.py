"""K of a batch with latency goals: goals out of reach, goals that pull apart, choices in turn."""

from collections import Counter
from collections.abc import Mapping

import pytest

from specpilot.engine_adapter.law.batch_choice import TURN_STEPS, Choice, chosen
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT
from specpilot.engine_adapter.law.forecast import Decodes, Turns, predicted
from specpilot.engine_adapter.law.step_worth import hopes, keeps_slos, tokens_of, worth_of_step
from specpilot.policy.schedule import ClassGuidance
from tests.unit.engine_adapter.law.test_forecast import HIGH, K_MAX, LOW, estimates, requirements

CHAT, JSON = 1 << REQUIREMENT_AT | LOW, 2 << REQUIREMENT_AT | HIGH
COUNTS = Counter({CHAT: 4, JSON: 12})


def choice(chat_ms: float | None, json_ms: float | None) -> Choice:
    """With K = 0 a step takes 11.6 ms. With the longest drafts for JSON it takes 17.4 ms, 4.2 ms a token of JSON."""
    chat, json = ClassGuidance(k_max=8, itl_slo_ms=chat_ms), ClassGuidance(k_max=9, itl_slo_ms=json_ms)
    asked = requirements(chat=chat, json=json)
    return chosen(estimates(), asked, COUNTS)


def latencies_ms(found: Choice) -> list[float]:
    step = found.step()
    return [1e3 * step.seconds / length for length in step.lengths]


def test_without_a_bound_that_binds_nothing_takes_turns() -> None:
    free = choice(None, None)
    assert (free.k_of[CHAT], free.k_of[JSON], free.turned, free.fastest) == (0, K_MAX, 0, {})
    kept = choice(20.0, 5.0)
    assert (kept.k_of, kept.turned, kept.fastest) == (free.k_of, 0, {})


def test_a_goal_that_no_k_keeps_does_not_hold_the_others_back() -> None:
    hopeless, free = choice(8.0, 4.5), choice(None, 4.5)
    assert (hopeless.k_of, hopeless.turned) == (free.k_of, 0)
    assert keeps_slos([free.groups[1]], free.step()._replace(lengths=free.step().lengths[1:]))


@pytest.mark.parametrize("chat_ms", [12.0, 12.3, 13.0, 14.0, 16.0])
def test_near_a_cliff_two_choices_in_turn_keep_a_goal_at_more_throughput_than_either_that_keeps_it(
    chat_ms: float,
) -> None:
    """Each step that drafts takes 13.8 ms or more, one with K = 0 11.6 ms."""
    found = choice(chat_ms, None)
    assert latencies_ms(found)[0] <= 1.02 * chat_ms
    groups = found.groups
    singles = [found.step({CHAT: low, JSON: high}) for low in range(K_MAX + 1) for high in range(K_MAX + 1)]
    kept = max(tokens_of(groups, step) / step.seconds for step in singles if keeps_slos(groups, step))
    rate = tokens_of(groups, found.step()) / found.step().seconds
    assert rate >= 0.98 * kept
    if chat_ms == 12.3:
        assert 0 < found.turned <= TURN_STEPS / 2
        assert rate > 1.1 * kept


def test_choices_in_turn_pay_for_the_catching_up_that_a_step_without_drafts_leaves() -> None:
    found = choice(12.3, None)
    assert found.estimates is not None
    before, n = found.step().seconds, COUNTS.total()
    found.estimates.prices.left_out_s = 2e-5
    turned = found.turned / TURN_STEPS
    assert (any(found.k_of.values()), found.turned_k[CHAT], bool(found.turned_k[JSON])) == (False, 0, True)
    later_s = (1 - turned) + turned * COUNTS[CHAT] * COUNTS[JSON] / n**2  # of all, and of chat beside JSON's drafts
    assert found.step().seconds == pytest.approx(before + n * 2e-5 * later_s)
    groups = {Decodes(name, code, 0): code for name, code in (("chat", LOW), ("json", HIGH))}
    batch = dict(zip(groups, COUNTS.values(), strict=True))
    turns = [dict(zip(groups, ks.values(), strict=True)) for ks in (_of_counts(found.k_of), _of_counts(found.turned_k))]
    forecast = predicted(found.estimates, found.requirements, batch, Turns(*turns, turned))
    assert forecast.step_s == pytest.approx(found.step().seconds)


def _of_counts(k_of: Mapping[int, int]) -> dict[int, int]:
    return {code: k_of[code] for code in COUNTS}


@pytest.mark.parametrize("json_ms", [4.3, 5.0, 7.0])
@pytest.mark.parametrize("chat_ms", [10.0, 12.0, 15.0])
def test_goals_that_pull_apart_are_weighed(chat_ms: float, json_ms: float) -> None:
    found = choice(chat_ms, json_ms)
    hope = hopes(found.groups, found.step(found.fastest)) if found.fastest else [1.0, 1.0]
    groups = [group._replace(hope=each) for group, each in zip(found.groups, hope, strict=True)]
    every = [found.step({CHAT: low, JSON: high}) for low in range(K_MAX + 1) for high in range(K_MAX + 1)]
    assert worth_of_step(groups, found.step()) >= 0.98 * max(worth_of_step(groups, step) for step in every)

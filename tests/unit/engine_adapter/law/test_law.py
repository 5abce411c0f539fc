"""The law of one engine: what it chooses, from what it counted."""

from collections import Counter
from typing import Any

import pytest

from specpilot.engine_adapter.evidence.meter import Evidence, StepShape
from specpilot.engine_adapter.law.law import LEAST_STEPS, EngineLaw
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective
from tests.support.measured_law import HIGH, K_MAX, LOW, STATIC, counted, follow, measured, request, step_s


def test_before_steps_were_measured_and_traffic_was_seen_the_static_k_holds() -> None:
    law = EngineLaw(K_MAX, STATIC, 32)
    law.learn([(StepShape(1, 1, 0), 0.005, 0)] * (LEAST_STEPS - 1), counted(HIGH, 0.97))
    law.refresh()
    assert law.k_of([request(HIGH)]) == [STATIC]
    calibrated = EngineLaw(K_MAX, STATIC, 32)
    calibrated.learn([(StepShape(1, 1, 0), 0.005, 0)] * LEAST_STEPS)
    calibrated.refresh()
    assert calibrated.k_of([request(HIGH)]) == [STATIC]
    assert calibrated.probe_prices is not None
    assert calibrated.prices is not None


def test_the_static_k_of_before_keeps_the_bounds_of_each_class() -> None:
    law = EngineLaw(K_MAX, STATIC, 32)
    follow(law, {"low": ClassGuidance(k_max=1), "pinned": ClassGuidance(k_min=5, k_max=5)})
    assert law.k_of([request(HIGH, name) for name in ("default", "low", "pinned", "unknown")]) == [3, 1, 5, 3]


def test_each_request_gets_the_k_of_its_band() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    assert law.k_of([request(HIGH), request(LOW), request(HIGH)]) == [K_MAX, 0, K_MAX]


def test_the_objective_is_that_of_the_guidance() -> None:
    """For the mean speed of a request longer steps do not pay: half of the requests gain nothing by them."""
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    for objective, k in ((Objective.THROUGHPUT, K_MAX), (Objective.LATENCY, 0)):
        law.follow(Guidance(objective))
        assert law.k_of([request(HIGH)] * 8 + [request(0)] * 8) == [k] * 8 + [0] * 8


def test_k_is_chosen_anew_when_many_changed_their_group() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH) for _ in range(8)] + [request(LOW) for _ in range(8)]
    for moved, choices in ((0, 1), (2, 1), (3, 2)):
        law.k_of([request(LOW) if at < moved else item for at, item in enumerate(batch)])
        assert law.choices == choices


def test_k_is_chosen_anew_when_many_have_ended() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH)] * 24
    law.k_of(batch)
    for left, choices in ((24, 1), (22, 1), (21, 2), (2, 3)):
        law.k_of(batch[:left])
        assert law.choices == choices, left


def test_new_prices_are_chosen_by_on_the_agents_thread() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH) for _ in range(8)]
    assert law.k_of(batch)[0] == K_MAX
    for _ in range(20):
        law.learn((), counted(HIGH, 0.0, drafts=1000))
    law.refresh()
    assert law.k_of(batch)[0] == 0
    assert law.choices == 1


def test_a_decode_in_a_band_that_was_empty_has_a_k_at_once() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH) for _ in range(8)] + [request(LOW) for _ in range(8)]
    law.k_of(batch)
    assert law.k_of([*batch, request(0), request(HIGH, drafts=0)])[-2:] == [0, K_MAX]
    assert law.choices == 1


def test_where_nothing_drafts_a_decode_in_a_band_that_was_empty_has_k_chosen_anew() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(0) for _ in range(4)]
    assert set(law.k_of(batch)) == {0}
    assert law.k_of([*batch, *[request(HIGH)] * 2])[-1] == K_MAX


def test_classes_with_the_same_requirements_are_one_and_others_have_their_bounds() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    follow(law, {"chat": ClassGuidance(), "batch": ClassGuidance(k_max=2), "pinned": ClassGuidance(k_min=5, k_max=5)})
    assert len(law.requirements.distinct) == 3
    batch = [request(HIGH, name) for name in ("default", "chat", "batch", "pinned", "unknown")]
    assert law.k_of(batch) == [K_MAX, K_MAX, 2, 5, K_MAX]
    assert law.requirements.probe_depth == {"default": K_MAX, "chat": K_MAX, "batch": 2, "pinned": 0}


def test_one_request_that_drafts_well_among_unprobed_ones_is_drafted_for() -> None:
    """Among requests that are known to draft badly it would not pay for the drafter."""
    law = measured(EngineLaw(K_MAX, STATIC, 64))
    alone = request(HIGH)
    assert law.k_of([alone, *(request(LOW) for _ in range(40))])[0] == 0
    assert law.k_of([alone, *(request(LOW, drafts=0) for _ in range(40))])[0] == K_MAX


def test_a_slower_machine_keeps_bounds_on_latency() -> None:
    """The slowdown factor strikes what is predicted, too."""
    batch = [request(HIGH, "chat"), *(request(5) for _ in range(15))]
    for slowdown in (1.0, 1.8):
        law, bound_ms = measured(EngineLaw(K_MAX, STATIC, 32)), 3.5
        follow(law, {"chat": ClassGuidance(tpot_bound_ms=bound_ms)})
        law.learn([(StepShape(16, 16, 0), slowdown * step_s(16, 16, 0), 0)] * 200)
        law.refresh()
        law.k_of(batch)
        law.refresh()
        assert 0.4 * bound_ms < 1e3 * law.outlook.predicted_s["chat"] < 1.02 * bound_ms


@pytest.mark.parametrize("k_max", [0, 1])
def test_engines_of_the_smallest_k_max(k_max: int) -> None:
    law = EngineLaw(k_max, 0, 8)
    law.learn([(StepShape(1, 1, 0), 0.005, 0)] * LEAST_STEPS, Evidence(drafts=Counter({("default", 0, 0): 1})))
    law.refresh()
    assert law.k_of([request(HIGH)])[0] in (0, k_max)


def test_guidance_that_changes_while_k_is_looked_up_do_not_disturb_the_agents_thread() -> None:
    """The scheduler's thread has read the old guidance, and the agent's sets one for fewer classes, then refreshes."""
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    follow(law, {"code": ClassGuidance(weight=2.0), "chat": ClassGuidance(weight=3.0)})

    class Changing(list[Any]):
        def __len__(self) -> int:
            follow(law)
            return super().__len__()

    law.k_of(Changing([request(HIGH, "chat"), request(LOW, "code")]))
    law.refresh()
    assert law.k_of([request(HIGH)]) == [K_MAX]


def test_first_drafts_do_not_count_for_the_band_in_which_requests_begin() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    refused = counted(HIGH, 0.0, drafts=3000)
    refused.first_trials, refused.first_accepts = refused.trials.copy(), refused.accepts.copy()
    for _ in range(3):
        law.learn((), refused)
        law.learn((), counted(HIGH, 0.97))
    law.refresh()
    assert law.k_of([request(HIGH)]) == [K_MAX]
    law.learn((), counted(HIGH, 0.0, drafts=3000))
    law.refresh()
    assert law.k_of([request(HIGH)]) == [0]


def test_the_time_of_decoding_leaves_out_catching_up_and_what_prefilled_tokens_took_by_the_prices() -> None:
    """Steps without evidence, such as a calibration's, are not of traffic."""
    law = EngineLaw(K_MAX, STATIC, 32)
    decodes, caught_up = StepShape(8, 16, 8), StepShape(8, 16, 8, read=64)
    prefills = [StepShape(8, 16, 8, tokens, read, is_uniform=False) for tokens, read in ((64, 0), (128, 72))]

    def took(shape: StepShape) -> float:
        return 0.010 + (shape.prefill > 0) * (shape.prefill * 1e-4) + shape.read * 2e-5

    def decoding_s(*shapes: StepShape) -> float:
        before = law.decode_s
        law.learn([(shape, took(shape), 800) for shape in shapes], Evidence())
        return law.decode_s - before

    assert decoding_s(prefills[0]) == pytest.approx(took(prefills[0])), "there are no prices yet"
    before = law.decode_s
    for shape in (decodes, caught_up, *prefills, *(StepShape(0, 0, 0, tokens) for tokens in (64, 128, 256))):
        law.learn([(shape, took(shape), 800)] * 100)
    assert law.decode_s == before
    law.refresh()
    assert decoding_s(decodes, decodes) == pytest.approx(0.020)
    assert decoding_s(caught_up, caught_up) == 0
    assert decoding_s(prefills[0]) == pytest.approx(0.010, rel=0.15)
    assert decoding_s(prefills[1]) == pytest.approx(0.010, rel=0.15), "the drafter's pass over a prompt is the prompt's"
    assert decoding_s(StepShape(0, 0, 0, 128)) == 0, "no decode was in it"
    law.learn([(prefills[0], 1e-4, 800)], Evidence())  # by the prices its tokens took longer than all of it
    assert decoding_s() == 0


def test_a_hold_keeps_k_of_each_group_whatever_is_learned_and_however_the_batch_changes() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    follow(law, {"chat": ClassGuidance(k_max=5)})
    batch = [request(HIGH)] * 8 + [request(LOW)] * 8
    before = law.k_of(batch)
    law.hold(is_held=True)
    for _ in range(20):
        law.learn((), counted(HIGH, 0.0, drafts=1000))
    law.refresh()
    law.hold(is_held=True)
    assert law.k_of(batch) == before
    # Groups that were empty: K of another class, of a new request, of other bands is that of the same moment.
    assert law.k_of([request(HIGH, "chat"), request(HIGH, drafts=0), request(0)]) == [5, K_MAX, 0]
    assert [group["k"] for group in law.groups()] == [0, K_MAX, 5]
    law.hold(is_held=False)
    assert law.k_of(batch) == [0] * 16


@pytest.mark.parametrize("decodes", [1, 8, 32])
def test_a_held_band_without_decodes_has_the_k_of_a_decode_that_changes_to_it(decodes: int) -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    law.learn((), counted(HIGH - 1, 0.95, drafts=1000))
    law.refresh()
    law.k_of([request(HIGH)] * decodes)
    law.hold(is_held=True)
    assert law.k_of([request(HIGH - 1), request(HIGH)]) == [K_MAX, K_MAX]


def test_a_hold_before_there_is_evidence_keeps_the_static_k() -> None:
    law = EngineLaw(K_MAX, STATIC, 32)
    law.hold(is_held=True)
    measured(law)
    assert law.k_of([request(HIGH), request(LOW)]) == [STATIC, STATIC]
    law.hold(is_held=False)
    assert law.k_of([request(HIGH)]) == [K_MAX]


def test_a_hold_without_a_choice_by_the_present_guidance_lets_the_law_choose_once() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    law.k_of([request(LOW)] * 4)
    follow(law, {"chat": ClassGuidance(k_max=2)})
    law.hold(is_held=True)  # nothing has run since
    assert law.k_of([request(HIGH, "chat")] * 4) == [2] * 4
    law.hold(is_held=True)
    choices = law.choices
    assert law.k_of([request(LOW)] * 4 + [request(HIGH, "chat")] * 20)[-1] == 2
    assert law.choices == choices


def test_guidance_states_the_static_k_or_leaves_it_to_the_engine() -> None:
    law = EngineLaw(K_MAX, STATIC, 32)
    for static_k, expected in ((5, 5), (60, K_MAX), (None, STATIC)):
        law.follow(Guidance(static_k=static_k))
        assert law.k_of([request(HIGH)]) == [expected]


def test_it_says_whether_the_static_k_breaks_an_slo_only_while_a_class_has_one() -> None:
    law = measured(EngineLaw(K_MAX, 0, 32))
    for slo_ms, expected in ((None, None), (4.0, True), (1000.0, False)):
        follow(law, {"default": ClassGuidance(tpot_bound_ms=slo_ms)})
        law.k_of([request(HIGH)] * 4)
        law.learn([(StepShape(4, 4, 0), step_s(4, 4, 0), 0)])
        law.refresh()
        assert law.outlook.breaks_slo is expected


READ_S = 3e-7
"""Seconds of a token that reads a token of context."""


def with_contexts(law: EngineLaw) -> EngineLaw:
    """Let the law know that each token of a step reads its request's context anew."""
    law.cost.has_long = True
    for context in (100, 20_000):
        for n in (1, 4, 16):
            for k in (0, 2, 7):
                shape = StepShape(n, n * (1 + k), n * k, draft_context=n * k * context)
                seconds = step_s(n, n * (1 + k), n * k) + READ_S * n * (1 + k) * context
                law.learn([(shape, seconds, n * context)] * 30)
    law.learn((), counted(HIGH, 0.97))
    law.refresh()
    return law


def test_a_request_with_a_long_context_has_a_k_of_its_own_where_a_draft_token_reads_it() -> None:
    law = with_contexts(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH)] * 8 + [request(HIGH, context=50_000)]
    law.k_of(batch)
    law.refresh()
    *short, long = law.k_of(batch)
    assert short == [K_MAX] * 8
    assert long == 0
    [of_short, of_long] = law.groups()
    assert (of_short["decodes"], of_short["k"], of_long["decodes"], of_long["k"]) == (8, K_MAX, 1, 0)
    assert "of band 7 with a context from " in of_long["why"]
    # 15 ms for each draft token
    assert of_long["positions"][0]["cost_tokens"] > 10 * of_short["positions"][0]["cost_tokens"]


def test_where_a_context_costs_a_draft_token_nothing_requests_are_grouped_as_without() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    batch = [request(HIGH)] * 8 + [request(HIGH, context=500_000)]
    law.k_of(batch)
    law.refresh()
    assert law.k_of(batch) == [K_MAX] * 9
    assert len(law.groups()) == 1


def test_a_long_context_that_comes_while_k_is_held_has_the_k_of_short_ones() -> None:
    law = with_contexts(EngineLaw(K_MAX, STATIC, 32))
    short = [request(HIGH)] * 8
    for _ in range(2):
        held = law.k_of(short)
        law.refresh()
    law.hold(is_held=True)
    assert law.k_of([*short, request(HIGH, context=50_000)]) == [*held, held[0]]
    assert sum(group["decodes"] for group in law.groups()) == 9


def test_drafts_have_prices_for_contexts_from_the_first_long_one_on() -> None:
    law = measured(EngineLaw(K_MAX, STATIC, 32))
    for context, has_long in ((1023, False), (1024, True), (100, True)):
        law.k_of([request(HIGH, context=context)])
        law.learn(())
        assert law.cost.has_long is has_long

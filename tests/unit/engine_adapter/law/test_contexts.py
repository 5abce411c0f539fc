"""Which decodes are grouped by their context."""

import math

import pytest

from specpilot.engine_adapter.law.contexts import CONTEXT_AT, LEAST_TOKENS, OCTAVES, Contexts, without_octave
from specpilot.engine_adapter.law.prices import KNOTS, PARTS, Coefficients, Prices, StepExtras

BASE_S, READ_S, MEAN = 10e-3, 1e-8, 5.0
UNIT = LEAST_TOKENS * BASE_S / 8 / READ_S
"""With 8 decodes at 10 ms a step."""


def prices(read_s: float = READ_S) -> Prices:
    parts = tuple({"base": BASE_S, "draft_context": read_s}.get(name, 0.0) for name in PARTS)
    return Prices(Coefficients(parts, (0.0,) * len(KNOTS)), 64, None, StepExtras(context_tokens=MEAN))


def test_without_a_price_all_contexts_are_alike() -> None:
    for contexts in (Contexts(), Contexts.of(prices(0.0), 8, [100, 1_000_000]), Contexts.of(prices(), 8, [])):
        assert math.isinf(contexts.unit)
        assert contexts.groups([3, 5], [100, 1_000_000]) == [3, 5]
        assert contexts.extra_of(5) == 0.0


def test_octaves_begin_where_a_draft_token_costs_a_32nd_of_a_token() -> None:
    lengths = [round(UNIT * factor) for factor in (0.1, 0.9, 1.1, 1.9, 2.1, 4.1, 8.1, 16.1, 1000.0)]
    contexts = Contexts.of(prices(), 8, lengths)
    assert contexts.unit == pytest.approx(UNIT)
    codes = contexts.groups([5] * len(lengths), lengths)
    assert [code >> CONTEXT_AT for code in codes] == [0, 0, 1, 1, 2, 3, 4, 5, 5]
    assert {without_octave(code) for code in codes} == {5}
    extra = [contexts.extra_of(octave << CONTEXT_AT) for octave in range(OCTAVES)]
    assert extra == sorted(extra)
    assert contexts.extra_of(codes[2]) == pytest.approx(READ_S * ((lengths[2] + lengths[3]) / 2 - MEAN))


def test_contexts_below_the_unit_are_alike() -> None:
    contexts = Contexts.of(prices(), 8, [100, 200])
    assert contexts.groups([3, 5], [100, 200]) == [3, 5]
    assert contexts.extra_of(5) == 0.0 < contexts.extra_of(1 << CONTEXT_AT | 5)


def test_an_octave_without_decodes_has_the_price_of_its_middle() -> None:
    contexts = Contexts.of(prices(), 8, [round(5.0 * UNIT), round(7.0 * UNIT)])
    [code, other] = contexts.groups([5, 5], [round(5.0 * UNIT), round(7.0 * UNIT)])
    assert code == other
    assert contexts.extra_of(code) == pytest.approx(READ_S * (6.0 * UNIT - MEAN))
    assert contexts.extra_of(without_octave(code)) == pytest.approx(READ_S * (0.5 * UNIT - MEAN))

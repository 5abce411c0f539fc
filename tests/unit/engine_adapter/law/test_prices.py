"""What a step takes by the CUDA graph that it finds."""

import numpy as np
import pytest

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.prices import KNOTS, PARTS, Coefficients, Prices, StepExtras, padded

SIZES = (1, 2, 4, 8, 16, 32)
VARLEN = Graphs("FULL_AND_PIECEWISE", SIZES, {1: (1, 2, 4)}, varlen=(4, 8, 16))


@pytest.mark.parametrize(
    ("n", "m", "prefill", "is_uniform", "tokens", "piecewise"),
    [
        (3, 3, 0, True, 4, 0.0),  # its own graph
        (3, 9, 0, True, 16, 0.0),  # uniform, and without one of its own
        (3, 9, 0, False, 16, 0.0),  # any mix
        (3, 18, 0, False, 32, 1.0),  # beyond the largest
        (3, 9, 4, False, 16, 1.0),  # a prompt
    ],
)
def test_a_step_of_decodes_finds_a_graph_of_variable_length(
    n: int, m: int, prefill: int, is_uniform: bool, tokens: int, piecewise: float
) -> None:
    found = padded(VARLEN, n, m, 0, prefill, is_uniform=is_uniform)
    assert (found.tokens, found.piecewise, found.graphless) == (tokens, piecewise, 0.0)


def prices(graphs: Graphs, extras: StepExtras) -> Prices:
    parts = tuple({"base": 1e-3, "piecewise": 5e-3, "prefill": 2e-6}.get(name, 0.0) for name in PARTS)
    return Prices(Coefficients(parts, (1e-5,) * len(KNOTS)), 32, graphs, extras)


def test_a_mix_of_k_costs_no_pieces_where_graphs_are_of_variable_length() -> None:
    pieces = Graphs("FULL_AND_PIECEWISE", SIZES, {1: (1, 2, 4)})
    mixed, other = prices(VARLEN, StepExtras()).mixed, prices(pieces, StepExtras()).mixed
    assert other[9] - mixed[9] == pytest.approx(5e-3)
    assert other[18] == mixed[18]
    half = StepExtras(prefill_ratio=0.5, prefill_tokens=4.0)  # with a prompt the step is piecewise on both
    assert prices(pieces, half).mixed[9] - prices(VARLEN, half).mixed[9] == pytest.approx(2.5e-3)
    assert np.all(np.diff(mixed[:17]) >= 0)


def test_a_step_with_its_prompts_has_the_mean_seconds_of_steps_with_and_without_a_prompt() -> None:
    """Four decodes of different K, 9 tokens in all, beside a prompt of 6 tokens in every fourth step."""
    priced = prices(VARLEN, StepExtras(prefill_ratio=0.25, prefill_tokens=6.0))
    with_prompt = 1e-3 + 5e-3 + 16 * 1e-5 + 6 * 2e-6  # padded to 16 tokens, in pieces
    without = 1e-3 + 16 * 1e-5
    assert priced.step_s(4, 9, 0) + priced.prompts_s == pytest.approx(0.25 * with_prompt + 0.75 * without)
    assert prices(VARLEN, StepExtras()).prompts_s == 0.0

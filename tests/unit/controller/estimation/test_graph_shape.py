import numpy as np
import pytest

from specpilot.controller.estimation.graph_shape import Step, cliffs, of_cell, of_mix
from specpilot.policy.graphs import Graphs

GRAPHS = Graphs("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16, 24, 32), {1: (1, 2, 4, 8), 4: (4, 8, 16, 32)}, (8, 16, 32))


def step(n: float, m: float, slots: float = 0.0, prefill: float = 0.0) -> Step:
    return Step(*(np.array([value]) for value in (n, m, slots, prefill, float(slots > 0))))


def kind(shape: object) -> tuple[float, ...]:
    """Tokens, then the shares of piecewise steps and of steps without a graph."""
    tokens, _, piecewise, graphless, _ = shape  # type: ignore[misc]
    return tuple(float(np.squeeze(part)) for part in (tokens, piecewise, graphless))


@pytest.mark.parametrize(
    ("n", "k", "expected"),
    [
        (1, 0, (1, 0, 0)),
        (3, 0, (4, 0, 0)),
        (9, 0, (16, 1, 0)),  # FULL graphs of single tokens end at 8
        (1, 3, (4, 0, 0)),
        (3, 3, (16, 0, 0)),
        (1, 1, (2, 1, 0)),
        (8, 3, (32, 0, 0)),
        (9, 3, (36, 0, 1)),
    ],
)
def test_a_step_of_one_k_is_padded_and_has_a_graph_as_the_engine_has(
    n: int, k: int, expected: tuple[float, ...]
) -> None:
    assert kind(of_cell(GRAPHS, step(n, n * (1 + k)))) == expected
    shares = np.eye(4)[k][None]
    assert kind(of_mix(GRAPHS, step(n, n * (1 + k)), shares)) == pytest.approx(expected)


def test_a_mix_is_uniform_as_often_as_chance_has_it() -> None:
    tokens, _, piecewise, graphless, _ = of_mix(GRAPHS, step(2, 5.0), np.array([[0.5, 0.0, 0.0, 0.5]]))
    assert float(np.squeeze(piecewise + graphless)) == pytest.approx(0.5)  # one of each; both 0 or both 3: FULL
    assert 0.25 * 2 + 0.25 * 8 < float(np.squeeze(tokens)) < 0.25 * 2 + 0.25 * 8 + 0.5 * 16


def test_steps_measured_together_are_uniform_as_far_as_their_means_allow() -> None:
    assert kind(of_cell(GRAPHS, step(4, 4.25)))[1] == pytest.approx(0.25)  # one step in four with a token more
    assert kind(of_cell(GRAPHS, step(4, 7.0)))[1] == 1.0


def test_prefill_has_no_uniform_steps() -> None:
    assert kind(of_cell(GRAPHS, step(1, 1, prefill=4)))[1] == 1.0
    assert kind(of_cell(GRAPHS, step(1, 1, prefill=400)))[2] == 1.0


def test_the_drafter_is_padded_by_verified_drafts_and_slots_and_loses_its_graphs_earlier() -> None:
    fits, beyond = of_cell(GRAPHS, step(5, 20, slots=15)), of_cell(GRAPHS, step(6, 24, slots=18))
    assert (float(np.squeeze(fits.slots)), float(np.squeeze(fits.drafter_graphless))) == (17.0, 0.0)  # 30 tokens as 32
    assert (float(np.squeeze(beyond.slots)), float(np.squeeze(beyond.drafter_graphless))) == (18.0, 1.0)
    assert kind(beyond)[2] == 0.0


def test_full_graphs_for_any_step_leave_none_piecewise() -> None:
    graphs = Graphs("FULL", (1, 2, 4, 8))
    assert kind(of_cell(graphs, step(2, 3))) == (4, 0, 0)
    assert kind(of_cell(graphs, step(9, 9))) == (9, 0, 1)


def test_graphs_of_variable_length_are_for_any_mix_of_decodes_and_for_no_prompt() -> None:
    graphs = Graphs("FULL_AND_PIECEWISE", (1, 2, 4, 8, 16, 24, 32), {1: (1, 2, 4, 8)}, varlen=(4, 8, 20))
    assert kind(of_cell(graphs, step(3, 3))) == (4, 0, 0)  # the uniform one
    assert kind(of_cell(graphs, step(3, 9)))[1:] == (0, 0)
    assert 8 <= kind(of_cell(graphs, step(3, 9)))[0] <= 20
    assert kind(of_mix(graphs, step(3, 12), np.eye(4)[3][None])) == (20, 0, 0)
    assert kind(of_cell(graphs, step(3, 24)))[1] > 0.9  # beyond the largest of them
    assert kind(of_cell(graphs, step(3, 9, prefill=4)))[1] == 1.0
    assert {21, 11, 7, 6} <= cliffs(graphs, 3)  # for K = 0 to 3: 20 over 1 + K


def test_cliffs_are_where_one_request_more_has_no_graph() -> None:
    target = {33, 17, 11, 9}  # for K = 0 to 3: the largest size over 1 + K
    uniform = {9}  # 8 of one token each, and 8 of four
    drafter = {17, 9, 6}  # for K = 1 to 3: the largest size over 2 K
    assert cliffs(GRAPHS, 3) == target | uniform | drafter

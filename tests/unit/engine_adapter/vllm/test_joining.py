"""How many positions a request gets that joins with one token left to prefill, from vLLM's own scheduler."""

from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.plan.step_plan import PLAN
from specpilot.engine_adapter.vllm.scheduler import SpecPilotAsyncScheduler, SpecPilotScheduler
from tests.support.adapter_scheduler import K_MAX, add, offer, scheduler, step

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own


GRAPHS = Graphs("FULL_AND_PIECEWISE")


def with_first(
    monkeypatch: pytest.MonkeyPatch, kind: type = SpecPilotScheduler, graphs: Graphs | None = GRAPHS, k: int = 3
) -> Any:
    """Return a scheduler whose schedule gives K to everybody, after the prompt of the request "first"."""
    engine = scheduler(monkeypatch, kind)
    engine.graphs = graphs
    offer(engine, 1, k)
    add(engine, "first", [*range(1, 9)])
    assert step(engine) == {"first": 8}
    return engine


@pytest.mark.parametrize("k", [0, 3, K_MAX])
def test_who_joins_gets_as_many_positions_as_the_others_have(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_first(monkeypatch, k=k)
    assert step(engine) == {"first": 1 + k}
    add(engine, "second", [1])
    assert step(engine) == {"first": 1 + k, "second": 1 + k}
    assert step(engine) == {"first": 1 + k, "second": 1 + k}
    assert engine.num_spec_tokens == K_MAX


@pytest.mark.parametrize("graphs", [None, Graphs("FULL"), Graphs("FULL_AND_PIECEWISE", varlen=(1, 2, 4, 8))])
def test_where_a_graph_fits_any_mix_or_there_is_none_a_request_that_joins_gets_its_own_token_alone(
    monkeypatch: pytest.MonkeyPatch, graphs: Graphs | None
) -> None:
    engine = with_first(monkeypatch, graphs=graphs)
    add(engine, "second", [1])
    assert step(engine) == {"first": 4, "second": 1}


def test_what_a_request_is_padded_with_does_not_wait_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """K falls to 0 in the step in which it joins. Its one token is at position 0: a row more would be before that."""
    engine = with_first(monkeypatch)
    add(engine, "second", [1])
    offer(engine, 2, 0)
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"first": 4, "second": 4}
    assert getattr(output, PLAN).deferred == ()
    assert [engine.steps.backlog(name) for name in ("first", "second")] == [1, 1]


def test_where_the_others_differ_no_request_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch)
    engine.graphs = GRAPHS
    add(engine, "first", [*range(1, 9)])
    add(engine, "second", [*range(1, 9)])
    step(engine)
    one, other = engine.steps.decoding
    one.k, other.k = 2, 5
    for state in (one, other):
        engine.requests[state.request_id].spec_token_ids = [6] * state.k
    add(engine, "third", [1])
    assert engine.schedule().num_scheduled_tokens == {"first": 3, "second": 6, "third": 1}


@pytest.mark.parametrize("kind", [SpecPilotScheduler, SpecPilotAsyncScheduler])
def test_after_a_step_without_tokens_no_request_is_padded(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that must run in every step has a width above 0, but nothing is drafted after such a step."""
    engine = scheduler(monkeypatch, kind)
    engine.graphs = GRAPHS
    engine.planner.catch_up.least_width = 1
    offer(engine, 1, 3)
    add(engine, "first", [*range(1, 9)])
    step(engine)
    engine.set_pause_state(PauseState.PAUSED_ALL)
    engine.schedule()
    engine.set_pause_state(PauseState.UNPAUSED)
    assert engine._joining_k() == 0


@pytest.mark.parametrize("kind", [SpecPilotScheduler, SpecPilotAsyncScheduler])
@pytest.mark.parametrize(("least", "positions"), [(3, 1), (2, 1), (1, 4), (0, 4)])
def test_while_a_request_waits_that_may_not_stop_yet_no_request_is_padded(
    kind: type, least: int, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asynchronously vLLM would count the placeholders as tokens, and let a request stop before its `min_tokens`."""
    engine = with_first(monkeypatch, kind)
    add(engine, "second", [1], min_tokens=least, stop_token_ids=[7])
    assert step(engine) == {"first": 4, "second": positions}


def test_who_may_not_stop_yet_is_forgotten_once_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch)
    engine.graphs = GRAPHS
    for turn in range(20):
        add(engine, str(turn), [*range(1, 9)], min_tokens=3, stop_token_ids=[7])
        engine.finish_requests(str(turn), type(engine.requests[str(turn)].status).FINISHED_ABORTED)
    assert not engine.requests
    assert len(engine._bound) <= 2

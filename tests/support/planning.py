"""Requests for the tests of the planner, in as few words as possible."""

from collections.abc import Sequence

from specpilot.engine_adapter.evidence.request_acceptance import kind_of
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.policy.bands import band_of
from tests.support.k_tables import table

K_MAX = 7
ROWS = 4096
UP = [0, 0, 0, 0, 0, 3, 5, 7]
"""K by band: only requests of the upper bands are drafted for."""


def request(name: str, traffic_class: str = "chat") -> DraftState:
    return DraftState(name, kind_of(traffic_class, 0.0, is_structured=False))


def decodes(*classes: str) -> list[DraftState]:
    """Return a decoding request of each class, named by its place."""
    return [request(str(place), name) for place, name in enumerate(classes)]


def prompt(name: str, tokens: int) -> DraftState:
    """Return a request whose whole prompt of so many tokens is in the step."""
    state = request(name)
    state.positions, state.is_text_prompt = tokens, True
    return state


def decode(states: Sequence[DraftState]) -> None:
    """From now on each request has one token a step."""
    for state in states:
        state.positions, state.is_text_prompt = 1, False


def accept(states: Sequence[DraftState], *acceptances: float) -> None:
    """Set the requests' own acceptance, and so their bands."""
    for state, acceptance in zip(states, acceptances, strict=True):
        estimate = state.acceptance
        estimate.accepts, estimate.trials, estimate.band = 10 * acceptance, 10.0, band_of(acceptance)


def outcome(state: DraftState, accepted: int) -> None:
    """Report the outcome of the request's draft."""
    state.note(state.k, accepted, is_probe=state.k > state.chosen_k, is_refused=False)


def plan_at_0(planner: Planner, states: list[DraftState], steps: int = 1) -> StepPlan:
    """Plan so many steps at K = 0 for all; return the last plan."""
    plan = StepPlan(0)
    for _ in range(steps):
        plan = planner.plan(states, table(default=0))
    return plan


def backlogs(states: Sequence[DraftState]) -> list[int]:
    return [state.backlog for state in states]

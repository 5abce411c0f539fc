"""What the planner reads of vLLM's request objects. Pure: attributes only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.policy.names import DEFAULT_CLASS, K_LIMIT, is_class_name

CLASS_ARGUMENT = "traffic_class"
"""The entry of a request's `extra_args` that names its class."""

CEILING_ARGUMENT = "k_max"
"""The entry that is the request's ceiling on K: a whole number, 0 for no speculation."""

_DELIVERED_BESIDE = 2
"""Tokens that a request delivers beside its next draft: one of this step, and the bonus token after the draft."""


class Stated(NamedTuple):
    """What a request states about itself. `default` stands for a class that is missing or invalid."""

    traffic_class: str = DEFAULT_CLASS
    temperature: float = 0.0
    ceiling: int = K_LIMIT


def stated(request: Any) -> Stated:
    """Return what a request states; a ceiling that is no whole number from 0 on counts as none."""
    parameters = request.sampling_params
    if parameters is None:
        return Stated()
    arguments = parameters.extra_args or {}
    name, ceiling = arguments.get(CLASS_ARGUMENT), arguments.get(CEILING_ARGUMENT)
    if not isinstance(name, str) or not is_class_name(name):
        name = DEFAULT_CLASS
    if type(ceiling) is not int or ceiling < 0:
        ceiling = K_LIMIT
    return Stated(name, parameters.temperature, ceiling)


def min_tokens(request: Any) -> int:
    """Return the length in tokens before which a request may not stop though a stop token could end it; 0: none."""
    parameters = request.sampling_params
    is_bound = parameters is not None and bool(parameters.all_stop_token_ids)
    return int(parameters.min_tokens) if is_bound else 0


def draftable_tokens(state: DraftState, request: Any, drafted: int) -> int:
    """Return how many tokens the next draft may have; of its last draft this step verifies `drafted` tokens.

    A request delivers `max_tokens` at most. Below its `min_tokens` no draft may reach that length, however much of the
    drafts before it is accepted: vLLM bars the stop tokens of a whole step by the request's length before the step, and
    asynchronously it counts all drafts under way as accepted. Beyond that length `state.min_tokens` becomes 0.
    """
    draftable: int = request.max_tokens - request.num_output_tokens - _DELIVERED_BESIDE
    if state.min_tokens > request.num_output_tokens + 1:
        longest: int = request.num_output_tokens + max(request.num_output_placeholders, 1 + drafted)
        return min(draftable, state.min_tokens - longest - _DELIVERED_BESIDE)
    state.min_tokens = 0
    return draftable


def reads_text_prompt(state: DraftState, request: Any, drafted: int) -> bool:
    """Whether a step that verifies `drafted` tokens of a request reads its prompt, and the prompt is text alone.

    Placeholders with which vLLM pads a joining request are verified like a draft, and are no prompt. A row's position
    is taken from the one after it. That is right for text, not for an image where positions have three dimensions.
    """
    return not (state.decoding or drafted or request.mm_features)


def waiting_decodes(running: Sequence[Any], scheduled: Mapping[str, int], states: Mapping[str, DraftState]) -> int:
    """Return how many of the `running` requests decode and have no token in the step that is `scheduled`.

    A request whose last tokens are under way has none in the next step either, and does not count.
    """
    if len(running) <= len(scheduled):
        return 0
    waiting = [
        states.get(request.request_id)
        for request in running
        if request.request_id not in scheduled
        and request.num_output_tokens + request.num_output_placeholders < request.max_tokens
    ]
    return sum(state is not None and state.decoding for state in waiting)

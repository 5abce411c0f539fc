"""Reads the facts that the planner needs from vLLM's request objects. Pure: only attributes are read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.policy.names import DEFAULT_CLASS, K_LIMIT, is_class_name

CLASS_ARGUMENT = "traffic_class"
"""The entry of a request's `extra_args` that names its class."""

CEILING_ARGUMENT = "k_max"
"""The entry that is the request's ceiling on K: a whole number, 0 for no speculation."""

_DELIVERED_BESIDE = 2
"""Tokens that a request delivers in addition to its next draft: one of this step, and the bonus token after the
draft."""


class Stated(NamedTuple):
    """The class, temperature and ceiling given in a request. A missing or invalid class is `default`."""

    traffic_class: str = DEFAULT_CLASS
    temperature: float = 0.0
    ceiling: int = K_LIMIT


def stated(request: Any) -> Stated:
    """Return the facts given in a request; a ceiling that is no whole number from 0 on counts as none."""
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
    """Return a request's `min_tokens`; 0 if it has none, or if no stop token could end it."""
    parameters = request.sampling_params
    is_bound = parameters is not None and bool(parameters.all_stop_token_ids)
    return int(parameters.min_tokens) if is_bound else 0


def draftable_tokens(state: DraftState, request: Any, drafted: int, *, may_exceed: bool = False) -> int:
    """Return the largest length of a request's next draft; this step verifies `drafted` tokens of the last draft.

    A request delivers at most `max_tokens`. If a draft `may_exceed` them, vLLM drops the tokens beyond. While the
    request is shorter than `min_tokens`, its draft must end below `min_tokens`, also on the assumption that all drafts
    under way are accepted. The reason: vLLM decides once per step whether stop tokens are allowed, from the request's
    length at the begin of the step, and its asynchronous loop counts all drafts under way as accepted. When the request
    has passed `min_tokens`, `state.min_tokens` becomes 0.
    """
    deliverable: int = request.max_tokens - request.num_output_tokens - _DELIVERED_BESIDE
    draftable = K_LIMIT if may_exceed else deliverable
    if state.min_tokens > request.num_output_tokens + 1:
        longest: int = request.num_output_tokens + max(request.num_output_placeholders, 1 + drafted)
        return min(draftable, state.min_tokens - longest - _DELIVERED_BESIDE)
    state.min_tokens = 0
    return draftable


def reads_text_prompt(state: DraftState, request: Any, drafted: int) -> bool:
    """Whether a step that verifies `drafted` tokens of a request reads its prompt, and the prompt is text alone.

    vLLM pads a joining request with placeholders. They are verified like a draft and are not a prompt. Only text
    counts: a row's position is derived from the next row's, which is wrong for images with three-dimensional positions.
    """
    return not (state.decoding or drafted or request.mm_features)


def waiting_decodes(running: Sequence[Any], scheduled: Mapping[str, int], states: Mapping[str, DraftState]) -> int:
    """Return the number of `running` requests that decode and have no token in the step that is `scheduled`.

    A request whose last tokens are under way has no token in the next step either, and does not count.
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

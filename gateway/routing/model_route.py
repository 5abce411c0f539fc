"""Finds the model that serves a request for a name with a route: a weighted split, then fall-back models. Pure.

Split, for a request that names a session (`gateway.routing.session`): weighted rendezvous hashing. Each target scores

    -weight / ln((h + 1/2) / 2^53),   h = 53 bits of hash(name, session, target),

and the highest score wins, so each target gets sessions in proportion to its weight. Every gateway computes the same
target without memory, a conversation stays with its model, and a change of weights moves only as many sessions as the
shares change. Each request without a session is drawn at random.

Fall-back, while the chosen model has no engine in service: the first model of the list that has one. When no model has
one, the first that has an engine at all, because an ejection may be wrong. A session returns to its model when that is
back.
"""

from collections.abc import Callable
from enum import StrEnum
from math import log
from typing import Final

from specpilot.gateway.routing.session import hash_of
from specpilot.policy.model_routes import ModelRoute, Target

_BITS: Final = 53


class RouteRule(StrEnum):
    """The rule by which a model serves a routed request."""

    SPLIT = "split"
    FALLBACK = "fallback"


def models_for(name: str, route: ModelRoute, session: str | None, draw: Callable[[], int]) -> tuple[str, ...]:
    """Return the models for a request for `name`: the chosen one, then those to fall back to, in order.

    `session` is the request's session; `draw` returns a random whole number of at least `_BITS` bits.
    """
    split = route.split
    if not split:
        chosen = name
    elif len(split) == 1:
        chosen = split[0].model
    else:
        chosen = _drawn(split, draw()) if session is None else _home(name, split, session)
    return (chosen, *(model for model in route.fallback if model != chosen))


def first_serving(models: tuple[str, ...], has_engine: Callable[[str], bool]) -> int:
    """Return the index of the first of `models` that has an engine; 0 when none has."""
    for index, model in enumerate(models):
        if has_engine(model):
            return index
    return 0


def _home(name: str, split: tuple[Target, ...], session: str) -> str:
    def score(target: Target) -> float:
        return -target.weight / log(_unit(hash_of(f"{name}\0{session}\0{target.model}")))

    return max(split, key=score).model


def _drawn(split: tuple[Target, ...], draw: int) -> str:
    remaining = _unit(draw) * sum(target.weight for target in split)
    for target in split:
        remaining -= target.weight
        if remaining < 0:
            return target.model
    return split[-1].model


def _unit(bits: int) -> float:
    """Return the middle bits of a 64-bit number as a number between 0 and 1, both excluded."""
    return ((bits >> 8 & (1 << _BITS) - 1) + 0.5) / (1 << _BITS)

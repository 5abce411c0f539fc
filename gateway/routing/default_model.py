"""Finds the model that a request without one means: the only one that can be meant. Pure.

vLLM serves such a request by its base model. Behind a gateway there may be more than one engine:

1. LoRA adapters (entries with a `parent`) are not meant while a base model can be.
2. Several names of one model, at the same engines, are one model; the first of them counts.
3. A model route is meant if all other names are models that it leads to, and none of them is a route.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from specpilot.policy.model_routes import ModelRoute


def meant(
    cards: Sequence[Mapping[str, Any]], routes: Mapping[str, ModelRoute], engines_of: Callable[[str], Hashable]
) -> str | None:
    """Return the name that is meant by a request without one; `None` if there is none, or more than one.

    `cards` are the entries of `/v1/models` for the client, `engines_of` returns the engines of a model.
    """
    bases = [card for card in cards if not card.get("parent")] or cards
    names = [str(card["id"]) for card in bases]
    if len(names) == 1:
        return names[0]
    routed = [name for name in names if name in routes]
    if len(routed) == 1:
        return routed[0] if routes[routed[0]].models(routed[0]).issuperset({*names} - {*routed}) else None
    kinds = {(card.get("root"), engines_of(name)) for card, name in zip(bases, names, strict=True)}
    is_one = not routed and len(kinds) == 1 and bases[0].get("root") is not None
    return min(names) if is_one else None

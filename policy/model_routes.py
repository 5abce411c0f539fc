"""The model that serves a requested name: aliases, weighted splits, fall-back models.

One document holds all names, because a route concerns the fleet and not a single model. A target is always a name that
engines serve and never another route, so routes cannot form a chain or a cycle. Frozen and checked at creation.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from specpilot.policy.names import STRICT, ModelName, raise_faults

ROUTES_LIMIT = 256
"""Names with a route at most; with `TARGETS_LIMIT` it bounds the document and the labels of metrics."""

TARGETS_LIMIT = 16
"""Models in a route's split at most, and in its fall-back."""


@dataclass(frozen=True, slots=True, config=STRICT)
class Target:
    """A model of a split; its share is `weight` divided by the sum of all weights."""

    model: ModelName
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


@dataclass(frozen=True, slots=True, config=STRICT)
class ModelRoute:
    """The models that serve requests for one name.

    `split`: models by weight; a single one is an alias, and with none the name is the model. `fallback`: models in
    order of preference while the chosen one has no engine; the first that has one serves.
    """

    split: Annotated[tuple[Target, ...], Field(max_length=TARGETS_LIMIT)] = ()
    fallback: Annotated[tuple[ModelName, ...], Field(max_length=TARGETS_LIMIT)] = ()

    def __post_init__(self) -> None:
        faults = []
        if not self.split and not self.fallback:
            faults.append("names no model; give split, fallback or both, or remove the route")
        for label, names in (("split", [target.model for target in self.split]), ("fallback", list(self.fallback))):
            faults.extend(f"{label} names {name!r} twice" for name in sorted({n for n in names if names.count(n) > 1}))
        raise_faults(faults)

    def models(self, name: str) -> frozenset[str]:
        """Return every model that may serve requests for `name`, the name of this route."""
        split = {target.model for target in self.split} or {name}
        return frozenset(split.union(self.fallback))


@dataclass(frozen=True, slots=True, config=STRICT)
class ModelRoutes:
    """Every route, by the name that clients ask for. Operators write them through the admin API."""

    routes: Annotated[Mapping[ModelName, ModelRoute], Field(max_length=ROUTES_LIMIT)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=STRICT)
class VersionedModelRoutes:
    """The routes as they are stored: `version` is the ETag (0: never written), `updated_at` Unix seconds."""

    version: int = 0
    updated_at: float = 0.0
    routes: Mapping[str, ModelRoute] = field(default_factory=dict)

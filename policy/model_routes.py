"""The model that serves a requested name: aliases, weighted splits, fall-back models.

One document holds all names, because a route concerns the fleet and not a single model. A target is always a name that
engines serve and never another route, so routes cannot form a chain or a cycle. Frozen and checked at creation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from specpilot.policy.names import STRICT, model_name_faults, raise_faults

ROUTES_LIMIT = 256
"""Names with a route at most; with `TARGETS_LIMIT` it bounds the document and the labels of metrics."""

TARGETS_LIMIT = 16
"""Models in a route's split at most, and in its fall-back."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model of a split; its share is `weight` divided by the sum of all weights."""

    __pydantic_config__: ClassVar = STRICT
    model: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        faults = model_name_faults("model", self.model)
        if not 0 < self.weight <= 1_000_000:  # noqa: PLR2004 - a bound that only catches nonsense
            limits = "it must be above 0 and at most 1000000; leave a model out to give it nothing"
            faults.append(f"weight is {self.weight}; {limits}")
        raise_faults(faults)


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """The models that serve requests for one name.

    `split`: models by weight; a single one is an alias, and with none the name is the model. `fallback`: models in
    order of preference while the chosen one has no engine; the first that has one serves.
    """

    __pydantic_config__: ClassVar = STRICT
    split: tuple[Target, ...] = ()
    fallback: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        faults = []
        if not self.split and not self.fallback:
            faults.append("names no model; give split, fallback or both, or remove the route")
        for label, names in (("split", [target.model for target in self.split]), ("fallback", list(self.fallback))):
            if len(names) > TARGETS_LIMIT:
                faults.append(f"{label} names {len(names)} models; at most {TARGETS_LIMIT}")
            faults.extend(f"{label} names {name!r} twice" for name in sorted({n for n in names if names.count(n) > 1}))
        faults.extend(fault for name in self.fallback for fault in model_name_faults("fallback", name))
        raise_faults(faults)

    def models(self, name: str) -> frozenset[str]:
        """Return every model that may serve requests for `name`, the name of this route."""
        split = {target.model for target in self.split} or {name}
        return frozenset(split.union(self.fallback))


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """Every route, by the name that clients ask for. Operators write them through the admin API."""

    __pydantic_config__: ClassVar = STRICT
    routes: Mapping[str, ModelRoute] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = [fault for name in self.routes for fault in model_name_faults(f"routes.{name}", name)]
        if len(self.routes) > ROUTES_LIMIT:
            faults.append(f"routes has {len(self.routes)} names; at most {ROUTES_LIMIT}")
        raise_faults(faults)


@dataclass(frozen=True, slots=True)
class VersionedModelRoutes:
    """The routes as they are stored: `version` is the ETag (0: never written), `updated_at` Unix seconds."""

    version: int = 0
    updated_at: float = 0.0
    routes: Mapping[str, ModelRoute] = field(default_factory=dict)

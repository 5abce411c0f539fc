"""`PUT /speculation` in the engine core: a field of the guidance that is not stated is that of the engine alone."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent import core_methods
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.policy.schedule import ClassGuidance, Guidance

OWN = Guidance(classes={"default": ClassGuidance(k_min=1)}, probe_ratio=0.02)


def applied(document: Any) -> Any:
    """Return the engine's state after a `PUT` of `document`, or the error."""
    scheduler = SimpleNamespace(
        control=SpeculationControl("m", "p", 7, 3, 8, adapts=True, own_guidance=OWN),
        law=SimpleNamespace(described=dict),
        steps=SimpleNamespace(starts=SimpleNamespace(known=dict)),
        running_decodes={},
        notes=[],
    )
    return json.loads(core_methods.apply(SimpleNamespace(scheduler=scheduler), json.dumps(document)))


@pytest.mark.parametrize(
    ("guidance", "probe_ratio", "k_min"),
    [
        ({}, 0.02, 1),
        ({"override": {"k": 5}}, 0.02, 1),
        ({"classes": {"default": {"k_max": 3}}}, 0.02, 0),
        ({"probe_ratio": 0.0}, 0.0, 1),
    ],
)
def test_an_engine_keeps_what_a_document_does_not_state(
    guidance: dict[str, Any], probe_ratio: float, k_min: int
) -> None:
    """With probes off, a band whose K is 0 would keep it."""
    state = applied({"guidance": guidance})
    found = state["schedule"]["guidance"]
    assert (found["probe_ratio"], found["classes"]["default"]["k_min"]) == (probe_ratio, k_min)
    assert (state["model"], state["pool"], state["version"]) == ("m", "p", 1)


@pytest.mark.parametrize(
    "document", [{}, {"guidance": []}, {"guidance": {"override": {"k": -1}}}, {"guidance": {"K": 1}}]
)
def test_a_document_without_guidance_or_with_faults_is_rejected(document: Any) -> None:
    assert applied(document)["error"]["code"] == "invalid_document"

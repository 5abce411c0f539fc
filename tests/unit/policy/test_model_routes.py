import pytest

from specpilot.policy.codec import decode, encode, from_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.model_routes import ModelRoute, ModelRoutes, Target, VersionedModelRoutes


def faults(**routes: object) -> str:
    with pytest.raises(InvalidDocumentError) as caught:
        from_plain(ModelRoutes, {"routes": routes})
    return "; ".join(map(str, caught.value.faults))


def test_a_document_survives_its_own_json() -> None:
    routes = {"chat": ModelRoute((Target("big", 9.0), Target("new")), ("small",)), "big": ModelRoute(fallback=("a",))}
    stored = VersionedModelRoutes(3, 1.5, routes)
    assert decode(VersionedModelRoutes, encode(stored)) == stored
    assert routes["chat"].models("chat") == {"big", "new", "small"}
    assert routes["big"].models("big") == {"big", "a"}


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ({}, "names no model"),
        ({"split": [{"model": "a "}]}, "split.0.model: 'a ' must be"),
        ({"split": [{"model": "a", "weight": 0}]}, "split.0.weight: must be above 0"),
        ({"split": [{"model": "a", "weight": "nan"}]}, "split.0.weight: must be a number"),
        ({"split": [{"model": "a"}, {"model": "a"}]}, "split names 'a' twice"),
        ({"fallback": ["a", "a"]}, "fallback names 'a' twice"),
        ({"fallback": [""]}, "fallback.0: '' must be"),
        ({"fallback": [str(number) for number in range(17)]}, "fallback: must have at most 16 items, not 17"),
        ({"targets": []}, "targets: is not a known field"),
    ],
)
def test_every_fault_names_its_field(route: object, said: str) -> None:
    assert said in faults(chat=route)


def test_names_and_their_number_are_bounded() -> None:
    assert "routes.a : 'a ' must be" in faults(**{"a ": {"fallback": ["c"]}})
    many = {str(number): {"fallback": ["c"]} for number in range(257)}
    assert "routes: must have at most 256 items" in faults(**many)

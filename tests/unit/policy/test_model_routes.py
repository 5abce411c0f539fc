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
        ({"split": [{"model": "a "}]}, "split.0: model 'a ' must be"),
        ({"split": [{"model": "a", "weight": 0}]}, "weight is 0.0; it must be above 0"),
        ({"split": [{"model": "a", "weight": "nan"}]}, "weight is nan"),
        ({"split": [{"model": "a"}, {"model": "a"}]}, "split names 'a' twice"),
        ({"fallback": ["a", "a"]}, "fallback names 'a' twice"),
        ({"fallback": [""]}, "fallback '' must be"),
        ({"fallback": [str(number) for number in range(17)]}, "fallback names 17 models; at most 16"),
        ({"targets": []}, "targets: is not a known field"),
    ],
)
def test_every_fault_names_its_field(route: object, said: str) -> None:
    assert said in faults(chat=route)


def test_names_and_their_number_are_bounded() -> None:
    assert "routes.a " in faults(**{"a ": {"fallback": ["c"]}})
    many = {str(number): {"fallback": ["c"]} for number in range(257)}
    assert "routes has 257 names; at most 256" in faults(**many)

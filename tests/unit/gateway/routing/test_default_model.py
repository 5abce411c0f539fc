"""Which model a request without one means."""

from typing import Any

import pytest

from specpilot.gateway.routing.default_model import meant
from specpilot.policy.model_routes import ModelRoute, Target


def card(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, **more}


ALIAS = ModelRoute(split=(Target("big"),))
SPLIT = ModelRoute(split=(Target("big"), Target("small")))
FALLBACK = ModelRoute(fallback=("small",))


@pytest.mark.parametrize(
    ("cards", "routes", "name"),
    [
        ([], {}, None),
        ([card("big")], {}, "big"),
        ([card("big"), card("small")], {}, None),
        ([card("big", root="/m", parent=None), card("lora", root="/l", parent="big")], {}, "big"),
        ([card("lora", root="/l", parent="big")], {}, "lora"),  # all that the key may use
        ([card("lora", parent="big"), card("other", parent="big")], {}, None),
        ([card("big", root="/m"), card("also", root="/m")], {}, "also"),
        ([card("big", root="/m"), card("small", root="/s")], {}, None),
        ([card("big", root="/m"), card("elsewhere", root="/m")], {}, None),
        ([card("public")], {"public": SPLIT}, "public"),
        ([card("big"), card("public")], {"public": ALIAS}, "public"),
        ([card("big"), card("small"), card("public")], {"public": SPLIT}, "public"),
        ([card("big"), card("small"), card("public")], {"public": ALIAS}, None),
        ([card("big"), card("one"), card("two")], {"one": ALIAS, "two": ALIAS}, None),
        ([card("big"), card("small")], {"big": FALLBACK}, "big"),
        ([card("big"), card("public")], {"public": ALIAS, "hidden": SPLIT}, "public"),
    ],
)
def test_a_model_is_meant_if_no_other_can_be(
    cards: list[dict[str, Any]], routes: dict[str, ModelRoute], name: str | None
) -> None:
    assert meant(cards, routes, lambda model: "B" if model == "elsewhere" else "A") == name

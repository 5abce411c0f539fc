import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.routing.classify import Classified, classify, is_match
from specpilot.gateway.wire.request_facts import RequestFacts, read_facts
from specpilot.policy.api_key import ApiKey
from specpilot.policy.model_policy import MatchRule

KNOWN = frozenset({"default", "code", "chat", "batch"})


def facts(**fields: Any) -> RequestFacts:
    return read_facts("/v1/chat/completions", json.dumps({"model": "m", **fields}).encode())


def key(traffic_class: str | None = None, allowed: tuple[str, ...] | None = None) -> ApiKey:
    return ApiKey("k", "0" * 64, traffic_class, allowed)


def decide(
    header: str | None = None,
    held: ApiKey | None = None,
    rules: tuple[MatchRule, ...] = (),
    **fields: Any,
) -> Classified:
    return classify(facts(**fields), header, held, KNOWN, rules)


BATCH = (MatchRule("batch"),)
ASKS = {"traffic_class": "batch"}


@pytest.mark.parametrize(
    ("found", "traffic_class"),
    [
        (decide(), "default"),
        (decide("code"), "code"),
        (decide("code", key()), "code"),
        (decide("code", key("chat", ("chat",))), "chat"),  # the header is clamped to what the key allows
        (decide("code", key("chat", ("chat", "code"))), "code"),
        (decide("code", key("code", ())), "code"),
        (decide("code", key(None, ())), "default"),
        (decide("code", key(None, ()), BATCH), "batch"),  # a forbidden class falls through to the rules
        (decide(None, key("chat"), BATCH), "chat"),  # the key's class comes before them
        (decide("code", key("batch")), "batch"),  # a key with a class alone is confined to it
        (decide("batch", key("batch")), "batch"),
        (decide(None, key("batch"), metadata={"traffic_class": "code"}), "batch"),
        (decide(metadata=ASKS), "batch"),
        (decide("code", metadata=ASKS), "code"),
        (decide(service_tier="batch"), "batch"),
        (decide(None, key("chat", ("chat",)), service_tier="batch"), "chat"),
        (decide(service_tier="auto"), "default"),  # OpenAI's own tiers override nothing
        (decide(None, key("batch", ("default", "batch")), service_tier="auto"), "batch"),
        (decide(None, key("batch", ("default", "batch")), service_tier="default"), "batch"),
        (decide(None, None, BATCH, service_tier="auto"), "batch"),
        (decide(None, None, BATCH, service_tier="default"), "batch"),
    ],
)
def test_who_names_the_class(found: Classified, traffic_class: str) -> None:
    assert found == Classified(traffic_class)


@pytest.mark.parametrize(
    ("found", "traffic_class"),
    [
        (decide("nope"), "default"),
        (decide(metadata={"traffic_class": "nope"}), "default"),
        (decide(None, key("nope")), "default"),
        (decide("nope", key("chat")), "chat"),
        (decide("nope", None, BATCH), "batch"),
    ],
)
def test_an_unknown_class_is_counted_and_no_error(found: Classified, traffic_class: str) -> None:
    assert found == Classified(traffic_class, has_unknown=True)


def test_the_first_rule_that_fits_wins() -> None:
    rules = (MatchRule("batch", stream=True), MatchRule("chat", stream=False), MatchRule("code"))
    assert decide(None, None, rules, stream=True).traffic_class == "batch"
    assert decide(None, None, rules).traffic_class == "chat"


@pytest.mark.parametrize(
    ("rule", "fields", "fits"),
    [
        (MatchRule("code"), {}, True),
        (MatchRule("code", path="/v1/chat/completions"), {}, True),
        (MatchRule("code", path="/v1/completions"), {}, False),
        (MatchRule("code", has_tools=True), {"tools": [{}]}, True),
        (MatchRule("code", has_tools=True), {"tools": []}, False),
        (MatchRule("code", has_tools=False), {}, True),
        (MatchRule("code", has_response_format=True), {"response_format": {"type": "json_object"}}, True),
        (MatchRule("code", has_response_format=True), {}, False),
        (MatchRule("code", max_tokens_at_most=5), {"max_tokens": 5}, True),
        (MatchRule("code", max_tokens_at_most=5), {"max_tokens": 6}, False),
        (MatchRule("code", max_tokens_at_most=5), {}, False),
        (MatchRule("code", prompt_chars_at_least=3), {"prompt": "abc"}, True),
        (MatchRule("code", prompt_chars_at_least=3), {"prompt": "ab"}, False),
        (MatchRule("code", stream=True, has_tools=True), {"stream": True}, False),
    ],
)
def test_a_rule_fits_when_every_fact_does(rule: MatchRule, fields: dict[str, Any], fits: bool) -> None:
    assert is_match(rule, facts(**fields)) is fits


classes = st.none() | st.sampled_from(["default", "code", "chat", "nope"])


@given(
    header=classes,
    of_key=classes,
    allowed=st.none() | st.lists(st.sampled_from(["code", "chat", "nope"])).map(tuple),
    has_key=st.booleans(),
    asked=classes,
)
def test_the_class_is_always_known_and_always_allowed(
    header: str | None, of_key: str | None, allowed: tuple[str, ...] | None, has_key: bool, asked: str | None
) -> None:
    held = key(of_key, allowed) if has_key else None
    found = decide(header, held, metadata={"traffic_class": asked})
    assert found.traffic_class in KNOWN
    if held is not None and allowed is not None:
        assert found.traffic_class in {*allowed, of_key, "default"}

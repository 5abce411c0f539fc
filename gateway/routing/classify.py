"""Determines the traffic class of a request. The server decides; the client may ask. Pure.

The first of these that is a class of the model:

1. the class that the request asks for (`X-Traffic-Class`, else the body's `metadata.traffic_class`, else
   `service_tier`), if its API key allows that class (`may_ask`);
2. the class of its API key;
3. the class of the first matching rule of the model's policy;
4. `default`.

A class that the model does not have is never an error: it is counted as unknown, and the next step is tried. A
`service_tier` that is no class is ignored without being counted, since OpenAI has tiers of its own; so are `auto` and
`default`, which OpenAI's clients send by default. A model without a policy has `default` and the classes of API keys.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from specpilot.gateway.wire.request_facts import RequestFacts
from specpilot.policy.api_key import ApiKey
from specpilot.policy.model_policy import MatchRule
from specpilot.policy.names import DEFAULT_CLASS

OPENAI_TIERS: Final = frozenset(("auto", "default"))


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a request, and whether the request or its key named a class that the model does not have."""

    traffic_class: str
    has_unknown: bool = False


_of = lru_cache(maxsize=256)(Classified)
"""A model has few classes, so these values are shared."""


def classify(
    facts: RequestFacts,
    header: str | None,
    key: ApiKey | None,
    known: Collection[str],
    rules: tuple[MatchRule, ...],
) -> Classified:
    """Return the class of a request.

    `header` is its `X-Traffic-Class`, `key` its API key if it has one, `known` the model's classes and `rules`
    the match rules of its policy.
    """
    has_unknown = False
    requested_class = header or facts.requested_class
    if requested_class is None:
        tier = facts.service_tier
        requested_class = tier if tier in known and tier not in OPENAI_TIERS else None
    if requested_class is not None:  # 1
        if requested_class not in known:
            has_unknown = True
        elif key is None or may_ask(key, requested_class):
            return _of(requested_class)
    if key is not None and key.traffic_class is not None:  # 2
        if key.traffic_class in known:
            return Classified(key.traffic_class, has_unknown)
        has_unknown = True
    for rule in rules:  # 3
        if is_match(rule, facts):
            return Classified(rule.traffic_class, has_unknown)
    return Classified(DEFAULT_CLASS, has_unknown=True) if has_unknown else _of(DEFAULT_CLASS)  # 4


def may_ask(key: ApiKey, traffic_class: str) -> bool:
    """Whether requests of `key` may ask for the class `traffic_class`.

    A key allows its own class and its `allowed_classes`. A key with neither allows every class.
    """
    if traffic_class == key.traffic_class:
        return True
    return key.traffic_class is None if key.allowed_classes is None else traffic_class in key.allowed_classes


def is_match(rule: MatchRule, facts: RequestFacts) -> bool:
    """Whether the request has every property that `rule` names. An unstated length does not match an upper bound."""
    if rule.path is not None and rule.path != facts.path:
        return False
    if rule.stream is not None and rule.stream != facts.stream:
        return False
    if rule.has_tools is not None and rule.has_tools != facts.has_tools:
        return False
    if rule.has_response_format is not None and rule.has_response_format != facts.has_response_format:
        return False
    if rule.max_tokens_at_most is not None:
        limit = facts.max_tokens
        if limit is None or limit > rule.max_tokens_at_most:
            return False
    return rule.prompt_chars_at_least is None or facts.prompt_chars >= rule.prompt_chars_at_least

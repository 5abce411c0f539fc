"""Which traffic class a request belongs to. The server decides; the client may ask.

In this order, the first that yields a class of the model:

1. what the request asks for (`X-Traffic-Class`, else the body's `metadata.traffic_class`, else `service_tier`),
   if its API key allows that class (`may_ask`);
2. the class of its API key;
3. the first match rule of the model's policy that fits;
4. `default`.

A class that the model does not have is never an error: the decision says that it was unknown, so that it can be
counted, and the next rule is tried. A `service_tier` that is no class is OpenAI's own and is passed over silently; so
are `auto` and `default`, which OpenAI's clients send without meaning a class.
Without a policy a model has `default` and the classes that API keys name. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from specpilot.gateway.wire.body import RequestFacts
from specpilot.policy.types import DEFAULT_CLASS, ApiKey, MatchRule

OPENAI_TIERS: Final = frozenset(("auto", "default"))


@dataclass(frozen=True, slots=True)
class Classified:
    """The class of a request, and whether it or its key named one that the model does not have."""

    traffic_class: str
    has_unknown: bool = False


_of = lru_cache(maxsize=256)(Classified)
"""A model's classes are few, and each is the same value every time."""


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
    asked = header or facts.asked_class
    if asked is None:
        tier = facts.service_tier
        asked = tier if tier in known and tier not in OPENAI_TIERS else None
    if asked is not None:
        if asked not in known:
            has_unknown = True
        elif key is None or may_ask(key, asked):
            return _of(asked)
    if key is not None and key.traffic_class is not None:
        if key.traffic_class in known:
            return Classified(key.traffic_class, has_unknown)
        has_unknown = True
    for rule in rules:
        if is_match(rule, facts):
            return Classified(rule.traffic_class, has_unknown)
    return Classified(DEFAULT_CLASS, has_unknown=True) if has_unknown else _of(DEFAULT_CLASS)


def may_ask(key: ApiKey, asked: str) -> bool:
    """Whether requests of `key` may ask for the class `asked`.

    For those that its `allowed_classes` name and its own; without them for its own alone, or for any if it has none.
    """
    if asked == key.traffic_class:
        return True
    return key.traffic_class is None if key.allowed_classes is None else asked in key.allowed_classes


def is_match(rule: MatchRule, facts: RequestFacts) -> bool:
    """Whether every fact that `rule` names is so. Not said is not "at most": such a request does not match."""
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

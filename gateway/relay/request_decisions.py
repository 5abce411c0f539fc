"""From a whole request to the decisions about it: facts, model, class, the bytes for the engine, its metrics.

This module decides and performs nothing; the exchange acts on its results.

A request for a name with a model route is for the model that the route chooses; class, policy and limits are those of
that model. Its original body is kept until the first byte of an answer, because the request may fall back to the
route's next model until then (`gateway.relay.engine_choice`), and the body is then amended again.
"""

from functools import partial
from typing import Final

import orjson

from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.relay.stored_response import check_owner, reference
from specpilot.gateway.routing.ceiling import ceiling_of
from specpilot.gateway.routing.classify import classify
from specpilot.gateway.routing.default_model import meant
from specpilot.gateway.routing.model_route import RouteRule, first_serving, models_for
from specpilot.gateway.routing.session import session_of
from specpilot.gateway.wire.amendments import amend
from specpilot.gateway.wire.body_fields import MODEL, PRIORITY, STREAM_OPTIONS
from specpilot.gateway.wire.errors import (
    EngineUnavailableError,
    GatewayError,
    InvalidFieldError,
    InvalidJsonError,
    ModelNotAllowedError,
    ModelNotFoundError,
)
from specpilot.gateway.wire.heads import K_MAX_HEADER, RequestHead, decision_lines, header_text
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import RequestFacts, in_utf_8, may_repeat_model, read_facts
from specpilot.gateway.wire.routes import MARKED, RESPONSES, STREAMED_WITH_USAGE, UNCHARGED
from specpilot.policy.api_key import ApiKey

_NO_MEMBERS: Final[dict[str, bytes]] = {}
_USAGE: Final = {STREAM_OPTIONS: b'{"include_usage":true}'}
"""Without `continuous_usage_stats`, with which vLLM would put usage into every event."""


def prepare(
    context: GatewayContext,
    head: RequestHead,
    key: ApiKey | None,
    body: tuple[bytes, ...],
    outline: BodyOutline | None,
) -> PreparedRequest:
    """Return the decisions about a request. Raises a `GatewayError` when it is rejected.

    `body` is in one part, or has an `outline`.
    """
    text = None if outline is None else outline.finish()
    if head.target:
        text, body = reference(context, head.target), (b"",)
    facts, body = _read(head.path, body, text)
    facts.model = facts.model or _default_model(context, key)
    requested_model = facts.model
    if key is not None and (head.path == RESPONSES or head.target):
        check_owner(facts, key.key_id)
    if key is not None and not head.target and not key.may_use(requested_model):
        raise ModelNotAllowedError(
            f"this API key may not ask for the model `{requested_model[:128]}`; GET /v1/models lists those that it may",
            param="model",
        )
    routes = context.snapshot.model_routes
    route = routes.get(requested_model) if routes and not head.target else None  # a stored response has its model
    if route is None:
        if requested_model not in context.fleet.by_model:
            raise _no_model(context, requested_model)
        prepared = _for_model(context, facts, head, key, body, outline)
        prepared.outline = text
        return prepared
    fleet = context.fleet
    models = models_for(requested_model, route, session_of(head.session, facts.body), fleet.chooser.draw)
    previous = facts.previous_response
    maker = None if previous is None else fleet.maker(previous, fleet.engines.values())
    if maker is not None:  # the conversation stays with the model that began it
        models = tuple(sorted(route.models(requested_model) & maker.models)) or models
    index = first_serving(models, fleet.has_engine) or first_serving(models, fleet.by_model.__contains__)
    if models[index] not in fleet.by_model:
        named = " or ".join(f"`{model}`" for model in models)
        message = f"no engine serves {named}, to which `{requested_model}` is routed; try again"
        raise EngineUnavailableError(message, param="model", retry_after_s=RETRY_AFTER_S)
    facts.model = models[index]
    prepared = _for_model(context, facts, head, key, body, outline, requested_model)
    prepared.outline = text
    if models[index + 1 :]:
        again = partial(_for_another, context, head, key, body, outline, requested_model)
        prepared.set_fallback(models[index + 1 :], again)
    rule = RouteRule.FALLBACK if index else RouteRule.SPLIT
    context.metrics.count_route(requested_model, models[index], rule.value)
    return prepared


def _for_model(  # noqa: PLR0913, PLR0917 - as `prepare`
    context: GatewayContext,
    facts: RequestFacts,
    head: RequestHead,
    key: ApiKey | None,
    body: tuple[bytes, ...],
    outline: BodyOutline | None,
    requested_model: str | None = None,
) -> PreparedRequest:
    """Prepare a request for the model of `facts`, which is in the fleet.

    `requested_model` is the name with a route, if any.
    """
    path, model = facts.path, facts.model
    known_classes, rules, version = context.terms(model)
    classified = classify(facts, head.traffic_class, key, known_classes, rules)
    if classified.has_unknown:
        context.metrics.unknown_class += 1
    # A client that asks itself, or whose options the engine will reject, gets what it sent.
    asks_usage = context.asks_usage and facts.stream and path in STREAMED_WITH_USAGE and facts.asks_usage is False
    k_max = ceiling_of(head.k_max, facts.body, None if key is None else key.k_max) if path in MARKED else None
    members = _USAGE if asks_usage else _NO_MEMBERS
    is_named = facts.body.get(MODEL) == model
    if key is not None and key.allowed_models is not None and is_named:
        # An engine that uses the first of two `model` members could serve one that the key does not allow.
        is_named = not may_repeat_model(body[0] if outline is None else outline.finish())
    if not is_named:
        members = {**members, MODEL: orjson.dumps(model)}
    if PRIORITY in facts.body:
        members = {**members, PRIORITY: b"0"}
    header_lines = b"x-specpilot-class: %s\r\nx-specpilot-policy-version: %d\r\n" % (
        classified.traffic_class.encode(),
        version,
    )
    if k_max is not None:
        header_lines += b"%s: %d\r\n" % (K_MAX_HEADER, k_max)
    if requested_model is not None:
        header_lines += b"x-specpilot-model: %s\r\n" % header_text(model)
    prepared = PreparedRequest(
        facts,
        classified.traffic_class,
        header_lines,
        context.metrics.cell(model, classified.traffic_class),
        amend(body, facts, members, outline),
        decision_lines(
            classified.traffic_class,
            -context.class_policy(model, classified.traffic_class).priority if context.sends_priority else 0,
            k_max,
        ),
    )
    prepared.key_id = None if key is None else key.key_id
    prepared.requested_model = requested_model
    prepared.strips_usage = asks_usage
    longest = context.fleet.longest.get(model)
    if path in UNCHARGED:
        prepared.charged_tokens = 0
    elif longest is not None:
        prepared.charged_tokens = longest if facts.is_endless else min(facts.charged_tokens, longest)
    return prepared


def _for_another(  # noqa: PLR0913, PLR0917 - as `prepare`
    context: GatewayContext,
    head: RequestHead,
    key: ApiKey | None,
    body: tuple[bytes, ...],
    outline: BodyOutline | None,
    requested_model: str,
    model: str,
) -> PreparedRequest:
    """Prepare a request again, for another `model` of its route."""
    facts = _facts_of(head.path, body, None if outline is None else outline.finish())
    facts.model = model
    return _for_model(context, facts, head, key, body, outline, requested_model)


def _facts_of(path: str, body: tuple[bytes, ...], text: bytes | None) -> RequestFacts:
    """Return the facts of a body. `text` replaces a body that is large or absent."""
    if text is None:
        return read_facts(path, body[0])
    return read_facts(path, text, sum(map(len, body)))


def _read(path: str, body: tuple[bytes, ...], text: bytes | None) -> tuple[RequestFacts, tuple[bytes, ...]]:
    """Return the facts of a body as `_facts_of` does, and the body in UTF-8, because new members are in UTF-8."""
    try:
        return _facts_of(path, body, text), body
    except InvalidJsonError:
        again = in_utf_8(body[0]) if text is None else None
        if again is None:
            raise
        return _facts_of(path, (again,), None), (again,)


def _default_model(context: GatewayContext, key: ApiKey | None) -> str:
    """Return the model for a request that names none.

    Raises `InvalidFieldError` if it is not clear which, `EngineUnavailableError` while no engine is known.
    """
    by_model = context.fleet.by_model
    model = meant(context.cards(key), context.snapshot.model_routes, by_model.get)
    if not by_model:
        raise _no_model(context, "")
    if model is None:
        raise InvalidFieldError("model is missing; name one of those that GET /v1/models lists", param=MODEL)
    return model


def _no_model(context: GatewayContext, model: str) -> GatewayError:
    if not context.fleet.by_model:
        return EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
    message = f"the model `{model[:128]}` does not exist here; GET /v1/models lists those that do"
    return ModelNotFoundError(message, param="model")

"""From a whole request to the decisions about it: facts, model, class, the bytes for the engine, its metrics.

This module decides and performs nothing; the exchange acts on its results. It lists the relayed routes.

A request for a name with a model route is for the model that the route chooses, and class, policy and limits are that
model's. Until the first byte of an answer it may still fall back to the route's next model (`pick_engine`). Its body is
then amended again, so the original body is kept until then.
"""

from collections.abc import Collection
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.stored_response import check_owner, reference
from specpilot.gateway.routing.ceiling import ceiling_of
from specpilot.gateway.routing.classify import classify
from specpilot.gateway.routing.model_route import RouteRule, first_serving, models_for, models_of
from specpilot.gateway.routing.session import session_of
from specpilot.gateway.telemetry.metrics import Cell
from specpilot.gateway.wire.amendments import amend, amendments
from specpilot.gateway.wire.body_fields import REQUEST_ID
from specpilot.gateway.wire.errors import (
    EngineUnavailableError,
    GatewayError,
    InvalidFormError,
    InvalidJsonError,
    ModelNotAllowedError,
    ModelNotFoundError,
)
from specpilot.gateway.wire.heads import K_MAX_HEADER, RequestHead, header_text
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.request_facts import RequestFacts, in_utf_8, may_repeat_model, read_facts
from specpilot.gateway.wire.routes import FORMS, RESPONSES, STORED, UNCHARGED
from specpilot.policy.types import ApiKey

MARKED_BYTES: Final = 2048
"""Bytes of a body's beginning and of its end that are hashed to distinguish bodies: 0.4 us a KiB."""

MARKED: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"))
"""The routes whose bodies may carry `vllm_xargs` in vLLM. SageMaker's `/invocations` takes a chat or a completion."""

PROXIED: Final = MARKED | {
    "/v1/embeddings",
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/tokenize", "/detokenize"),
    *("/classify", "/pooling", "/v1/messages/count_tokens"),
    *FORMS,
    *STORED,
}
"""Every relayed route. No other path reaches an engine."""

STREAMED_WITH_USAGE: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/invocations"))
"""The routes whose streams state their usage only if `stream_options.include_usage` requests it."""


class Source:
    """The original of a request, and the models to which it may still fall back."""

    __slots__ = ("body", "fallback", "head", "key", "outline")

    def __init__(
        self,
        head: RequestHead,
        key: ApiKey | None,
        body: tuple[bytes, ...],
        outline: BodyOutline | None,
        fallback: tuple[str, ...],
    ) -> None:
        self.head = head
        self.key = key
        self.body = body
        self.outline = outline
        self.fallback = fallback


class PreparedRequest:
    """A request that the gateway accepts. `own` are the gateway's header lines for the client.

    - `facts` holds the parsed body, which can be many times the size of `body`, the bytes for the engine. It is `None`
      once the request waits or its engine is chosen.
    - `body` is empty once there can be no retry. `outline` is the parsed part of a large body.
    - `requested_model` is the requested name, if it has a model route. `source` is set while the request may fall back
      to another model.
    - `rate_lines` are the lines of `own` about the key's limits.
    - `charged_tokens` is the charge until the response states its usage, `prompt_tokens` its part for the prompt.
    - `strips_usage`: the gateway requested the usage, and the client did not.
    - `is_unnamed`: the response needs an identifier, for the API key `key_id`, and the client chose none
      (`has_null_id`: it sent `null`).
    """

    __slots__ = (
        "_mark",
        "body",
        "cell",
        "charged_tokens",
        "facts",
        "has_null_id",
        "is_stream",
        "is_unnamed",
        "key_id",
        "max_tokens",
        "model",
        "outline",
        "own",
        "path",
        "prompt_tokens",
        "rate_lines",
        "requested_model",
        "source",
        "strips_usage",
        "traffic_class",
        "work_tokens",
    )

    def __init__(
        self,
        facts: RequestFacts,
        traffic_class: str,
        own: bytes,
        cell: Cell,
        body: tuple[bytes | memoryview, ...],
    ) -> None:
        self.facts: RequestFacts | None = facts
        self.outline: bytes | None = None
        self.path = facts.path
        self.model = facts.model
        self.is_stream = facts.stream
        self.is_unnamed = facts.path == RESPONSES and facts.body.get(REQUEST_ID) is None
        self.has_null_id = self.is_unnamed and REQUEST_ID in facts.body
        self.key_id: str | None = None
        self.max_tokens = facts.max_tokens
        self.work_tokens = facts.work_tokens
        self.traffic_class = traffic_class
        self.own = own
        self.rate_lines = b""
        self.cell = cell
        self.charged_tokens = facts.charged_tokens
        self.prompt_tokens = facts.prompt_tokens
        self.strips_usage = False
        self.requested_model: str | None = None
        self.source: Source | None = None
        self.body = body
        self._mark = 0

    @property
    def size(self) -> int:
        """The body's length in bytes."""
        return sum(map(len, self.body))

    def take_facts(self) -> RequestFacts:
        """Return the facts for the choice of an engine and release them. A second call parses them again."""
        facts, self.facts = self.facts, None
        if facts is None:
            if self.outline is not None:
                facts = read_facts(self.path, self.outline, self.size)
            else:
                facts = read_facts(self.path, b"".join(self.body))
            facts.model = self.model  # an outline is of the original body
        return facts

    def mark(self) -> int:
        """Return a hash that distinguishes this body from others: of its beginning, its end and its length."""
        if self.body:
            first, last = self.body[0], self.body[-1]
            if len(self.body) == 1 and isinstance(first, bytes) and len(first) <= MARKED_BYTES:
                self._mark = hash(first)
            else:
                self._mark = hash((bytes(first[:MARKED_BYTES]), bytes(last[-MARKED_BYTES:]), self.size))
        return self._mark

    def release_body(self) -> None:
        """Release the body: there can be no retry."""
        if self.is_stream:
            self.mark()  # the stream may still fail, and its failure counts by body
        self.body = ()
        self.outline = self.source = None

    def turn_to(self, other: "PreparedRequest") -> None:
        """Take over the decisions of `other`, the same request for another model. The charge stays."""
        self.cell.in_flight -= 1
        other.cell.in_flight += 1
        self.facts = other.facts
        self.model = other.model
        self.requested_model = other.requested_model
        self.traffic_class = other.traffic_class
        self.own = other.own + self.rate_lines
        self.cell = other.cell
        self.body = other.body
        self.strips_usage = other.strips_usage


def prepare(  # noqa: PLR0913, PLR0917 - the parts of a request
    context: GatewayContext,
    path: str,
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
    elif path in FORMS and text is None:
        raise InvalidFormError("the form is empty; send it in the body")
    facts, body = _read(path, body, text)
    asked = facts.model
    if key is not None and (path == RESPONSES or head.target):
        check_owner(facts, key.key_id)
    if key is not None and not head.target and not key.may_use(asked):
        raise ModelNotAllowedError(
            f"this API key may not ask for the model `{asked[:128]}`; GET /v1/models lists those that it may",
            param="model",
        )
    routes = context.snapshot.model_routes
    # A form is sent unchanged, so its model cannot be replaced; and a stored response has its model already.
    route = routes.get(asked) if routes and not head.target and path not in FORMS else None
    if route is None:
        if asked not in context.fleet.by_model:
            raise _no_model(context, asked)
        prepared = _for_model(context, facts, head, key, body, outline)
        prepared.outline = text
        return prepared
    fleet = context.fleet
    models = models_for(asked, route, session_of(head.session, facts.body), fleet.chooser.draw)
    previous = facts.previous_response
    maker = None if previous is None else fleet.maker(previous, fleet.engines.values())
    if maker is not None:  # the conversation stays with the model that began it
        models = tuple(sorted(models_of(asked, route) & maker.models)) or models
    index = first_serving(models, fleet.has_engine) or first_serving(models, fleet.by_model.__contains__)
    if models[index] not in fleet.by_model:
        named = " or ".join(f"`{model}`" for model in models)
        message = f"no engine serves {named}, to which `{asked}` is routed; try again"
        raise EngineUnavailableError(message, param="model", retry_after_s=RETRY_AFTER_S)
    facts.model = models[index]
    prepared = _for_model(context, facts, head, key, body, outline, asked)
    prepared.outline = text
    if models[index + 1 :]:
        prepared.source = Source(head, key, body, outline, models[index + 1 :])
    context.metrics.count_route(asked, models[index], (RouteRule.FALLBACK if index else RouteRule.SPLIT).value)
    return prepared


def _for_model(  # noqa: PLR0913, PLR0917 - as `prepare`
    context: GatewayContext,
    facts: RequestFacts,
    head: RequestHead,
    key: ApiKey | None,
    body: tuple[bytes, ...],
    outline: BodyOutline | None,
    asked: str | None = None,
) -> PreparedRequest:
    """Prepare a request for the model of `facts`, which is in the fleet. `asked` is the name with a route, if any."""
    path, model = facts.path, facts.model
    rules, version = context.terms(model)
    classified = classify(facts, head.traffic_class, key, context.known_classes(model), rules)
    if classified.has_unknown:
        context.metrics.unknown_class += 1
    asks_usage = context.asks_usage and facts.stream and path in STREAMED_WITH_USAGE
    is_marked = path in MARKED
    k_max = ceiling_of(head.k_max, facts.body, None if key is None else key.k_max) if is_marked else None
    named = None if asked is None or asked == model else model
    if key is not None and key.allowed_models is not None and named is None:
        # An engine that uses the first of two `model` members could serve one that the key does not allow.
        named = model if may_repeat_model(body[0] if outline is None else outline.finish()) else None
    wanted = amendments(
        classified.traffic_class if context.marks_class and is_marked else None,
        -context.class_policy(model, classified.traffic_class).priority if context.sends_priority else None,
        asks_usage,
        k_max,
        named,
    )
    own = b"x-specpilot-class: %s\r\nx-specpilot-policy-version: %d\r\n" % (
        classified.traffic_class.encode(),
        version,
    )
    if k_max is not None:
        own += b"%s: %d\r\n" % (K_MAX_HEADER, k_max)
    if asked is not None:
        own += b"x-specpilot-model: %s\r\n" % header_text(model)
    prepared = PreparedRequest(
        facts,
        classified.traffic_class,
        own,
        context.metrics.cell(model, classified.traffic_class),
        amend(body, facts, wanted, outline),
    )
    prepared.key_id = None if key is None else key.key_id
    prepared.requested_model = asked
    prepared.strips_usage = asks_usage and not facts.asks_usage
    longest = context.fleet.longest.get(model)
    if path in UNCHARGED:
        prepared.charged_tokens = 0
    elif longest is not None:
        prepared.charged_tokens = longest if facts.is_endless else min(facts.charged_tokens, longest)
    return prepared


def pick_engine(
    context: GatewayContext, prepared: PreparedRequest, session: str | None, avoid: Collection[Engine]
) -> Engine | None:
    """Return the engine for a request, with a fall-back to other models; `None` when there is none.

    `session` is the value of its session header; `avoid` are engines that are full or have failed the request.
    """
    while True:
        engine = context.fleet.pick(prepared.take_facts(), session, context.monotonic(), avoid)
        if engine is not None or not _fall_back(context, prepared):
            return engine


def _fall_back(context: GatewayContext, prepared: PreparedRequest) -> bool:
    """Turn `prepared` to the next model with an engine in service; return whether there is one."""
    source = prepared.source
    if source is None:
        return False
    index = first_serving(source.fallback, context.fleet.has_engine)
    model, later = source.fallback[index], source.fallback[index + 1 :]
    if not context.fleet.has_engine(model):
        return False
    text = None if source.outline is None else source.outline.finish()
    facts = _facts(prepared.path, source.body, text)
    asked, facts.model = facts.model, model
    prepared.turn_to(_for_model(context, facts, source.head, source.key, source.body, source.outline, asked))
    if later:
        source.fallback = later
    else:
        prepared.source = None
    context.metrics.count_route(asked, model, RouteRule.FALLBACK.value)
    return True


def _facts(path: str, body: tuple[bytes, ...], text: bytes | None) -> RequestFacts:
    """Return the facts of a body. `text` stands for a body that is large, a form, or absent."""
    if text is None:
        return read_facts(path, body[0])
    # The bytes of a form's file are no measure of the prompt.
    return read_facts(path, text, len(text) if path in FORMS else sum(map(len, body)))


def _read(path: str, body: tuple[bytes, ...], text: bytes | None) -> tuple[RequestFacts, tuple[bytes, ...]]:
    """Return the facts of a body as `_facts` does, and the body in UTF-8, because amendments are in UTF-8."""
    try:
        return _facts(path, body, text), body
    except InvalidJsonError:
        again = in_utf_8(body[0]) if text is None else None
        if again is None:
            raise
        return _facts(path, (again,), None), (again,)


def _no_model(context: GatewayContext, model: str) -> GatewayError:
    if not context.fleet.by_model:
        return EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
    message = f"the model `{model[:128]}` does not exist here; GET /v1/models lists those that do"
    return ModelNotFoundError(message, param="model")

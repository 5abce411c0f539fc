"""From a whole request to what is to be done with it: facts, model, class, the bytes for the engine, where it counts.

Decides and performs nothing; the exchange acts on what is returned. The routes that are relayed are named here.

A request for a name with a model route is for the model that the route chooses: everything from the class on is that
model's. While none of its answer has arrived it may still be turned to the next fall-back model (`pick_engine`), for
which its body is amended anew; so the body as it came is kept until then.
"""

from collections.abc import Collection
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.stored_response import check_owner, reference
from specpilot.gateway.relay.tuning import MARKED_BYTES, RETRY_AFTER_S
from specpilot.gateway.routing.ceiling import ceiling_of
from specpilot.gateway.routing.classify import classify
from specpilot.gateway.routing.model_route import RouteRule, first_serving, models_for, models_of
from specpilot.gateway.routing.session import session_of
from specpilot.gateway.telemetry.metrics import Cell
from specpilot.gateway.wire.body import (
    REQUEST_ID,
    RequestFacts,
    amend,
    amendments,
    in_utf_8,
    may_repeat_model,
    read_facts,
)
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
from specpilot.gateway.wire.routes import FORMS, RESPONSES, STORED, UNCHARGED
from specpilot.policy.types import ApiKey

MARKED: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"))
"""The routes whose bodies vLLM lets carry `vllm_xargs`; SageMaker's `/invocations` takes a chat or a completion."""

PROXIED: Final = MARKED | {
    "/v1/embeddings",
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/tokenize", "/detokenize"),
    *("/classify", "/pooling", "/v1/messages/count_tokens"),
    *FORMS,
    *STORED,
}
"""Every route that is relayed. What is not here never reaches an engine."""

STREAMED_WITH_USAGE: Final = frozenset(("/v1/chat/completions", "/v1/completions", "/invocations"))
"""The routes whose streams state their usage only when `stream_options.include_usage` asks for it."""


class Source:
    """What a request was prepared from, and the models that it may still be turned to."""

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
    """A request as the gateway takes it on. `own` are the header lines that tell the client of it.

    `facts` hold the parsed body, which can be many times the size of `body`, the bytes for the engine: `None` when the
    request waits or its engine is chosen. `body` is empty once there can be no retry. `outline` is what was parsed of a
    large body. `requested_model` is what the client asked for, where that name has a model route; `source` is there
    while the request may be turned to another model. `rate_lines` are those of `own` that say what is left of the key's
    limits. `charged_tokens` is what counts against the key's limit until the
    response states its usage, `prompt_tokens` of it for the prompt; `strips_usage`: the gateway asked for that, and the
    client did not. `is_unnamed`: the response is to have an identifier, for the API key `key_id`, and the client chose
    none (`has_null_id`: it said `null`).
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
        """Return what the choice of an engine looks at and let go of it; a second time it is parsed again."""
        facts, self.facts = self.facts, None
        if facts is None:
            if self.outline is not None:
                facts = read_facts(self.path, self.outline, self.size)
            else:
                facts = read_facts(self.path, b"".join(self.body))
            facts.model = self.model  # an outline is of the body as it came
        return facts

    def mark(self) -> int:
        """Return what tells this body from others: a hash of its beginning, end and length."""
        if self.body:
            first, last = self.body[0], self.body[-1]
            if len(self.body) == 1 and isinstance(first, bytes) and len(first) <= MARKED_BYTES:
                self._mark = hash(first)
            else:
                self._mark = hash((bytes(first[:MARKED_BYTES]), bytes(last[-MARKED_BYTES:]), self.size))
        return self._mark

    def release_body(self) -> None:
        """Let go of the body: there can be no retry."""
        if self.is_stream:
            self.mark()  # it may fail yet
        self.body = ()
        self.outline = self.source = None

    def turn_to(self, other: "PreparedRequest") -> None:
        """Be as `other`, the same request for another model. What it was charged for stays."""
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


def prepare(  # noqa: PLR0913, PLR0917 - what came, and by what it is judged
    context: GatewayContext,
    path: str,
    head: RequestHead,
    key: ApiKey | None,
    body: tuple[bytes, ...],
    outline: BodyOutline | None,
) -> PreparedRequest:
    """Return what to do with a request. Raises a `GatewayError` when it cannot be taken on.

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
    # A form goes as it came, so that the name in it cannot be another; what a response's identifier names is made.
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
    if maker is not None:  # the conversation goes on with the model that began it
        models = tuple(sorted(models_of(asked, route) & maker.models)) or models
    at = first_serving(models, fleet.has_engine) or first_serving(models, fleet.by_model.__contains__)
    if models[at] not in fleet.by_model:
        named = " or ".join(f"`{model}`" for model in models)
        said = f"no engine serves {named}, to which `{asked}` is routed; try again"
        raise EngineUnavailableError(said, param="model", retry_after_s=RETRY_AFTER_S)
    facts.model = models[at]
    prepared = _for_model(context, facts, head, key, body, outline, asked)
    prepared.outline = text
    if models[at + 1 :]:
        prepared.source = Source(head, key, body, outline, models[at + 1 :])
    context.metrics.count_route(asked, models[at], (RouteRule.FALLBACK if at else RouteRule.SPLIT).value)
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
    """Prepare a request for the model of `facts`, which is in the fleet; `asked` is the name that has a route."""
    path, model = facts.path, facts.model
    rules, version = context.terms(model)
    found = classify(facts, head.traffic_class, key, context.known_classes(model), rules)
    if found.has_unknown:
        context.metrics.unknown_class += 1
    asks_usage = context.asks_usage and facts.stream and path in STREAMED_WITH_USAGE
    is_marked = path in MARKED
    k_max = ceiling_of(head.k_max, facts.body, None if key is None else key.k_max) if is_marked else None
    named = None if asked is None or asked == model else model
    if key is not None and key.allowed_models is not None and named is None:
        # An engine that believes the first of two would serve one that the key may not ask for.
        named = model if may_repeat_model(body[0] if outline is None else outline.finish()) else None
    wanted = amendments(
        found.traffic_class if context.marks_class and is_marked else None,
        -context.class_policy(model, found.traffic_class).priority if context.sends_priority else None,
        asks_usage,
        k_max,
        named,
    )
    own = b"x-specpilot-class: %s\r\nx-specpilot-policy-version: %d\r\n" % (
        found.traffic_class.encode(),
        version,
    )
    if k_max is not None:
        own += b"%s: %d\r\n" % (K_MAX_HEADER, k_max)
    if asked is not None:
        own += b"x-specpilot-model: %s\r\n" % header_text(model)
    prepared = PreparedRequest(
        facts,
        found.traffic_class,
        own,
        context.metrics.cell(model, found.traffic_class),
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
    """Return the engine for a request, which is turned to its fall-back models while there is none; `None` at last.

    `session` is what its header names, `avoid` are the engines that are full or failed it.
    """
    while True:
        engine = context.fleet.pick(prepared.take_facts(), session, context.monotonic(), avoid)
        if engine is not None or not _fall_back(context, prepared):
            return engine


def _fall_back(context: GatewayContext, prepared: PreparedRequest) -> bool:
    """Turn `prepared` to the next model that has an engine in good standing; return whether there is one."""
    source = prepared.source
    if source is None:
        return False
    at = first_serving(source.fallback, context.fleet.has_engine)
    model, left = source.fallback[at], source.fallback[at + 1 :]
    if not context.fleet.has_engine(model):
        return False
    text = None if source.outline is None else source.outline.finish()
    facts = _facts(prepared.path, source.body, text)
    asked, facts.model = facts.model, model
    prepared.turn_to(_for_model(context, facts, source.head, source.key, source.body, source.outline, asked))
    if left:
        source.fallback = left
    else:
        prepared.source = None
    context.metrics.count_route(asked, model, RouteRule.FALLBACK.value)
    return True


def _facts(path: str, body: tuple[bytes, ...], text: bytes | None) -> RequestFacts:
    """Return the facts of a body; `text` is what stands for it where it is large, a form, or not there at all."""
    if text is None:
        return read_facts(path, body[0])
    # What an engine makes of a file's bytes is no prompt of a quarter as many tokens.
    return read_facts(path, text, len(text) if path in FORMS else sum(map(len, body)))


def _read(path: str, body: tuple[bytes, ...], text: bytes | None) -> tuple[RequestFacts, tuple[bytes, ...]]:
    """Return the facts of a body as `_facts` does, and the body: in UTF-8, as what is added to it is."""
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
    said = f"the model `{model[:128]}` does not exist here; GET /v1/models lists those that do"
    return ModelNotFoundError(said, param="model")

"""From a whole request to what is to be done with it: facts, class, the bytes for the engine, where it counts.

Decides and performs nothing; the exchange acts on what is returned. The routes that are relayed are named here.
"""

import orjson

from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.routing.classify import classify
from specpilot.gateway.telemetry.metrics import Cell
from specpilot.gateway.wire.body import PREVIOUS, REQUEST_ID, RequestFacts, amend, amendments, read_facts
from specpilot.gateway.wire.errors import (
    EngineUnavailableError,
    GatewayError,
    InvalidFormError,
    ModelNotFoundError,
    ResponseNotFoundError,
)
from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.outline import BodyOutline
from specpilot.gateway.wire.routes import FORMS, RESPONSES, STORED, asks_stream, response_id
from specpilot.policy.types import ApiKey

MARKED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"))
"""The routes whose bodies vLLM lets carry `vllm_xargs`; SageMaker's `/invocations` takes a chat or a completion."""

PROXIED = MARKED | {
    "/v1/embeddings",
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/tokenize", "/detokenize"),
    *("/classify", "/pooling", "/v1/messages/count_tokens"),
    *FORMS,
    *STORED,
}
"""Every route that is relayed. What is not here never reaches an engine."""

STREAMED_WITH_USAGE = frozenset(("/v1/chat/completions", "/v1/completions", "/invocations"))
"""The routes whose streams state their usage only when `stream_options.include_usage` asks for it."""

RETRY_AFTER_S = 1.0
"""Seconds that a client is told to wait when the gateway cannot know better."""


class PreparedRequest:
    """A request as the gateway takes it on. `own` are the header lines that tell the client of it.

    `facts` hold the parsed body, which can be many times the size of `body`, the bytes for the engine: `None` when the
    request waits or its engine is chosen. `body` is empty once there can be no retry. `outline` is what was parsed of a
    large body. `charged_tokens` is what counts against the key's limit until the response states its usage;
    `strips_usage`: the gateway asked for that, and the client did not. `is_unnamed`: the response is to have an
    identifier, and the client chose none.
    """

    __slots__ = (
        "body",
        "cell",
        "charged_tokens",
        "facts",
        "is_stream",
        "is_unnamed",
        "max_tokens",
        "model",
        "outline",
        "own",
        "path",
        "strips_usage",
        "traffic_class",
        "work_tokens",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - a plain record, and no dataclass: mypyc would leave that interpreted
        self,
        facts: RequestFacts,
        traffic_class: str,
        own: bytes,
        cell: Cell,
        body: tuple[bytes | memoryview, ...],
        outline: bytes | None,
    ) -> None:
        self.facts: RequestFacts | None = facts
        self.outline = outline
        self.path = facts.path
        self.model = facts.model
        self.is_stream = facts.stream
        self.is_unnamed = facts.path == RESPONSES and REQUEST_ID not in facts.body
        self.max_tokens = facts.max_tokens
        self.work_tokens = facts.work_tokens
        self.traffic_class = traffic_class
        self.own = own
        self.cell = cell
        self.charged_tokens = facts.charged_tokens
        self.strips_usage = False
        self.body = body

    @property
    def size(self) -> int:
        """The body's length in bytes."""
        return sum(map(len, self.body))

    def take_facts(self) -> RequestFacts:
        """Return what the choice of an engine looks at and let go of it; a second time it is parsed again."""
        facts, self.facts = self.facts, None
        if facts is not None:
            return facts
        if self.outline is not None:
            return read_facts(self.path, self.outline, self.size)
        return read_facts(self.path, b"".join(self.body))


def prepare(  # noqa: PLR0913, PLR0917 - what came, and by what it is judged
    context: GatewayContext,
    path: str,
    head: RequestHead,
    key: ApiKey | None,
    body: bytes,
    outline: BodyOutline | None,
) -> PreparedRequest:
    """Return what to do with a request. Raises a `GatewayError` when it cannot be taken on."""
    text = None if outline is None else outline.finish()
    if head.target:
        text, body = _reference(context, head.target), b""
    elif path in FORMS and text is None:
        raise InvalidFormError("the form is empty; send it in the body")
    is_counted = path not in FORMS  # what an engine makes of a file's bytes is no prompt of a quarter as many tokens
    facts = read_facts(path, body) if text is None else read_facts(path, text, len(body) if is_counted else len(text))
    model = facts.model
    if model not in context.fleet.by_model:
        raise _no_model(context, model)
    snapshot = context.snapshot
    found = classify(facts, head.traffic_class, key, context.known_classes(model), snapshot.rules(model))
    if found.has_unknown:
        context.metrics.unknown_class += 1
    asks_usage = context.asks_usage and facts.stream and path in STREAMED_WITH_USAGE
    wanted = amendments(
        found.traffic_class if context.marks_class and path in MARKED else None,
        -context.class_policy(model, found.traffic_class).priority if context.sends_priority else None,
        asks_usage,
    )
    own = b"x-specpilot-class: %s\r\nx-specpilot-policy-version: %d\r\n" % (
        found.traffic_class.encode(),
        snapshot.policy_version(model),
    )
    prepared = PreparedRequest(
        facts,
        found.traffic_class,
        own,
        context.metrics.cell(model, found.traffic_class),
        tuple(amend(body, facts, wanted, outline)),
        text,
    )
    prepared.strips_usage = asks_usage and not facts.asks_usage
    longest = context.fleet.longest.get(model)
    prepared.charged_tokens = facts.charged_tokens if longest is None else min(facts.charged_tokens, longest)
    return prepared


def _reference(context: GatewayContext, target: str) -> bytes:
    """Return what a request that refers to a stored response says, as the body that it does not have."""
    found = response_id(target)
    engines = context.fleet.engines.values()
    engine = context.fleet.maker(found, engines)
    if engine is None or not engine.models:
        if not engines:
            raise EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
        raise ResponseNotFoundError(f"no engine here made the response `{found}`, or it has gone")
    model = engine.registered_model or min(engine.models)
    asked = {"model": model, PREVIOUS: found, "max_tokens": 0, "stream": asks_stream(target)}
    return orjson.dumps(asked)


def _no_model(context: GatewayContext, model: str) -> GatewayError:
    if not context.fleet.by_model:
        return EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
    said = f"the model `{model[:128]}` does not exist here; GET /v1/models lists those that do"
    return ModelNotFoundError(said, param="model")

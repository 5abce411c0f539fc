"""From a whole request to what is to be done with it: facts, class, the bytes for the engine, where it counts.

Decides and performs nothing; the exchange acts on what is returned. The routes that are relayed are named here.
"""

from gateway.classify import classify
from gateway.errors import EngineUnavailableError, GatewayError, ModelNotFoundError
from gateway.heads import RequestHead
from gateway.metrics import Cell
from gateway.plane import Plane
from gateway.wire import RequestFacts, mark, read_facts
from policy.types import ApiKey

MARKED = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"))
"""The routes whose bodies vLLM lets carry `vllm_xargs`; SageMaker's `/invocations` takes a chat or a completion."""

PROXIED = MARKED | {
    "/v1/embeddings",
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/tokenize", "/detokenize"),
}
"""Every route that is relayed. What is not here never reaches an engine."""

RETRY_AFTER_S = 1.0


class Intake:
    """A request as the gateway takes it on. `own` are the header lines that tell the client of it.

    `facts` hold the parsed body, which can be many times the size of `body`, the bytes for the engine: `None` when the
    request waits or its engine is chosen. `body` is empty once there can be no retry.
    """

    __slots__ = (
        "body",
        "cell",
        "facts",
        "is_stream",
        "max_tokens",
        "model",
        "own",
        "path",
        "traffic_class",
        "work_tokens",
    )

    def __init__(
        self, facts: RequestFacts, traffic_class: str, own: bytes, cell: Cell, body: tuple[bytes | memoryview, ...]
    ) -> None:
        self.facts: RequestFacts | None = facts
        self.path = facts.path
        self.model = facts.model
        self.is_stream = facts.stream
        self.max_tokens = facts.max_tokens
        self.work_tokens = facts.work_tokens
        self.traffic_class = traffic_class
        self.own = own
        self.cell = cell
        self.body = body

    @property
    def size(self) -> int:
        """The body's length in bytes."""
        return sum(map(len, self.body))

    def take_facts(self) -> RequestFacts:
        """Return what the choice of an engine looks at and let go of it; a second time it is parsed again."""
        facts, self.facts = self.facts, None
        return read_facts(self.path, b"".join(self.body)) if facts is None else facts


def take_in(plane: Plane, path: str, head: RequestHead, key: ApiKey | None, body: bytes) -> Intake:
    """Return what to do with a request. Raises a `GatewayError` when it cannot be taken on."""
    facts = read_facts(path, body)
    model = facts.model
    if model not in plane.fleet.by_model:
        raise _no_model(plane, model)
    snapshot = plane.snapshot
    found = classify(facts, head.traffic_class, key, plane.known_classes(model), snapshot.rules(model))
    if found.has_unknown:
        plane.metrics.unknown_class += 1
    is_marked = plane.marks_class and path in MARKED
    own = b"x-specpilot-class: %s\r\nx-specpilot-policy-version: %d\r\n" % (
        found.traffic_class.encode(),
        snapshot.policy_version(model),
    )
    return Intake(
        facts,
        found.traffic_class,
        own,
        plane.metrics.cell(model, found.traffic_class),
        tuple(mark(body, facts, found.traffic_class)) if is_marked else (body,),
    )


def _no_model(plane: Plane, model: str) -> GatewayError:
    if not plane.fleet.by_model:
        return EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
    said = f"the model `{model[:128]}` does not exist here; GET /v1/models lists those that do"
    return ModelNotFoundError(said, param="model")

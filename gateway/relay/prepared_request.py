"""A request that the gateway accepts, with the decisions about it. `gateway.relay.request_decisions` makes it."""

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.telemetry.cell import Cell
from specpilot.gateway.wire.amendments import with_request_id
from specpilot.gateway.wire.body_fields import REQUEST_ID
from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.request_facts import RequestFacts, read_facts
from specpilot.gateway.wire.response_id import RANDOM_BITS, new_response_id
from specpilot.gateway.wire.routes import RESPONSES

SMALL_BODY_BYTES: Final = 65_536
"""Bytes up to which a body is copied behind its head, because one write takes less time than two."""

MARKED_BYTES: Final = 2048
"""Bytes of a body's beginning and of its end that are hashed to distinguish bodies: 0.4 us a KiB."""


class PreparedRequest:
    """A request that the gateway accepts. Its own `header_lines` are for the client, `engine_lines` for the engine.

    - `facts` holds the parsed body, which can be many times the size of `body`, the bytes for the engine. It is `None`
      once the request waits or its engine is chosen.
    - `body` is empty once there can be no retry. `outline` is the parsed part of a large body.
    - `requested_model` is the requested name, if it has a model route. The request may still fall back to the models
      `fallback`; `prepare_for` returns the original request as prepared for one of them.
    - `rate_lines` are the lines of `header_lines` about the key's limits.
    - `charged_tokens` is the charge until the response states its usage, `prompt_tokens` its part for the prompt.
    - `strips_usage`: the gateway requested the usage, and the client did not.
    - `is_unnamed`: the response needs an identifier, for the API key `key_id`, and the client chose none
      (`has_null_id`: it sent `null`).
    - `has_one_choice`: a stream has one choice.
    """

    __slots__ = (
        "_mark",
        "body",
        "cell",
        "charged_tokens",
        "engine_lines",
        "facts",
        "fallback",
        "has_null_id",
        "has_one_choice",
        "header_lines",
        "is_stream",
        "is_unnamed",
        "key_id",
        "max_tokens",
        "model",
        "outline",
        "path",
        "prepare_for",
        "prompt_tokens",
        "rate_lines",
        "requested_model",
        "strips_usage",
        "traffic_class",
        "work_tokens",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        facts: RequestFacts,
        traffic_class: str,
        header_lines: bytes,
        cell: Cell,
        body: tuple[bytes | memoryview, ...],
        engine_lines: bytes,
    ) -> None:
        self.facts: RequestFacts | None = facts
        self.outline: bytes | None = None
        self.path = facts.path
        self.model = facts.model
        self.is_stream = facts.stream
        self.has_one_choice = facts.stream and facts.has_one_choice
        self.is_unnamed = facts.path == RESPONSES and facts.body.get(REQUEST_ID) is None
        self.has_null_id = self.is_unnamed and REQUEST_ID in facts.body
        self.key_id: str | None = None
        self.max_tokens = facts.max_tokens
        self.work_tokens = facts.work_tokens
        self.traffic_class = traffic_class
        self.header_lines = header_lines
        self.engine_lines = engine_lines
        self.rate_lines = b""
        self.cell = cell
        self.charged_tokens = facts.charged_tokens
        self.prompt_tokens = facts.prompt_tokens
        self.strips_usage = False
        self.requested_model: str | None = None
        self.fallback: tuple[str, ...] = ()
        self.prepare_for: Callable[[str], PreparedRequest] | None = None
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

    def buffers(self, engine: Engine, request: RequestHead, *, names_response: bool) -> tuple[bytes | memoryview, ...]:
        """Return the request for `engine`, as buffers to send one after another. `request` is the client's head.

        `names_response`: the gateway gives a response an identifier, if an engine keeps the response and the client
        chose none. The identifier names the engine, so a retry has another one.
        """
        body: Sequence[bytes | memoryview] = self.body
        if self.is_unnamed and names_response:
            made_for = new_response_id(engine.engine_hash, self.key_id, secrets.randbits(RANDOM_BITS))
            body = with_request_id(body, made_for, is_null=self.has_null_id)
        only = body[0] if len(body) == 1 else None
        size = sum(map(len, body)) if only is None else len(only)
        head = b"%s%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            engine.head(request.method, (request.target or request.path).encode()),
            request.forwarded,
            self.engine_lines,
            request.request_id,
            size,
        )
        if size <= SMALL_BODY_BYTES and isinstance(only, bytes):
            return (head + only,)
        return (head, *body)

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
        self.outline = None
        self.set_fallback((), None)

    def set_fallback(self, models: tuple[str, ...], prepare_for: "Callable[[str], PreparedRequest] | None") -> None:
        """Let the request fall back to `models`. Without any, nothing holds the original request."""
        self.fallback = models
        self.prepare_for = prepare_for if models else None

    def turn_to(self, other: "PreparedRequest") -> None:
        """Take over the decisions of `other`, the same request for another model. The charge stays."""
        self.cell.in_flight -= 1
        other.cell.in_flight += 1
        self.facts = other.facts
        self.model = other.model
        self.requested_model = other.requested_model
        self.traffic_class = other.traffic_class
        self.header_lines = other.header_lines + self.rate_lines
        self.engine_lines = other.engine_lines
        self.cell = other.cell
        self.body = other.body
        self.strips_usage = other.strips_usage

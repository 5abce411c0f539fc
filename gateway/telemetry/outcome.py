"""The outcome of one request, as plain values: the source of its counts, its access log line and its span."""

from specpilot.gateway.wire.usage import Usage


class Outcome:
    """One request that has ended. Times are monotonic seconds. `None`: it never happened, or it was not stated.

    `error` is set if the status alone does not describe the failure: the code of the gateway's own error, sent instead
    of a response or at its end; `error_event` for an engine's within a stream; `stalled` for a client that was closed
    because it stopped reading. `is_stream`: the client requested a stream; `is_event_stream`: the engine sent one.
    `overhead_s` runs from the beginning to the first time that the request was sent. `requested_model` is the requested
    name, if a model route chose another `model`. `first_byte_at` and `events` are of the engine's body.
    """

    def __init__(  # noqa: PLR0913 - a plain record, and no dataclass: mypyc would leave its initialiser interpreted
        self,
        *,
        request_id: bytes,
        method: bytes,
        path: str,
        status: int,
        phase: str,
        received_at: float,
        ended_at: float,
        error: str | None,
    ) -> None:
        self.request_id = request_id
        self.method = method
        self.path = path
        self.status = status
        self.phase = phase
        self.received_at = received_at
        self.ended_at = ended_at
        self.error = error
        self.waited_s = 0.0
        self.client_host: str | None = None
        self.key_id: str | None = None
        self.model: str | None = None
        self.requested_model: str | None = None
        self.traffic_class: str | None = None
        self.is_stream = False
        self.max_tokens: int | None = None
        self.engine_id: str | None = None
        self.engines_tried = 0
        self.overhead_s: float | None = None
        self.is_event_stream = False
        self.first_byte_at: float | None = None
        self.events = 0
        self.usage: Usage | None = None

    @property
    def duration_s(self) -> float:
        """Seconds from the whole request to the end of its response."""
        return self.ended_at - self.received_at

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the whole request to the first byte of a streamed body."""
        if not self.is_event_stream or self.first_byte_at is None:
            return None
        return self.first_byte_at - self.received_at

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first one of a whole stream that stated its tokens."""
        tokens = (self.usage.output_tokens if self.usage is not None else None) or 0
        if not self.is_event_stream or self.first_byte_at is None or self.error is not None or tokens < 2:  # noqa: PLR2004
            return None
        return (self.ended_at - self.first_byte_at) / (tokens - 1)

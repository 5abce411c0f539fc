"""Requests that run in an engine at all times, each replaced by its like when it ends."""

import time
from collections.abc import Callable, Sequence
from typing import Any


class Traffic:
    """The requests of an engine that the caller steps; `tokens` are delivered so far.

    `kinds` has the kind of each running request. `request_of` returns the prompt and vLLM's sampling parameters of a
    request of a kind; it also gets how many requests have begun before.
    """

    def __init__(self, engine: Any, kinds: Sequence[int], request_of: Callable[[int, int], tuple[Any, Any]]) -> None:
        self._engine, self._request_of = engine, request_of
        self._begun = self.tokens = 0
        self._kind: dict[str, int] = {}
        self._delivered: dict[str, int] = {}
        for kind in kinds:
            self._begin(kind)

    def _begin(self, kind: int) -> None:
        name = f"traffic-{self._begun}"
        self._engine.add_request(name, *self._request_of(kind, self._begun))
        self._kind[name], self._delivered[name], self._begun = kind, 0, self._begun + 1

    def step(self) -> float:
        """Run a step; return its seconds."""
        began = time.perf_counter()
        outputs = self._engine.step()
        seconds = time.perf_counter() - began
        for output in outputs:
            name, count = output.request_id, len(output.outputs[0].token_ids)
            self.tokens += count - self._delivered[name]
            self._delivered[name] = count
            if output.finished:
                del self._delivered[name]
                self._begin(self._kind.pop(name))
        return seconds

    def run_for(self, seconds: float) -> None:
        """Run steps for some seconds."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.step()

    def end(self) -> None:
        """End all requests."""
        self._engine.abort_request([*self._delivered])
        while self._engine.has_unfinished_requests():
            self._engine.step()

"""The requests of a simulated engine: where they come from, how long they are, and which drafts they accept.

Every request is a sequence of tokens that a draft hits or misses: a Bernoulli process with an acceptance of its own
(`traffic.ACCEPTANCE`), which is constant unless the reply changes its kind half-way.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from specpilot.engine_adapter.plan.request_facts import CLASS_ARGUMENT
from tests.simulation.plant import Work
from tests.simulation.traffic import ACCEPTANCE, Source

_PREFILL_CHUNK = 512
_RANDOM_BLOCK = 4096
_HOT = "_hot"
"""Suffix of the kinds of traffic at temperature 1."""


@dataclass(slots=True)
class Request:
    """A request, with vLLM's attributes that the adapter reads. `to_read` prompt tokens are not prefilled yet."""

    request_id: str
    source: int
    acceptance: float
    later: float  # acceptance in the second half of its reply
    length: float
    to_read: int
    num_output_tokens: int
    sampling_params: SimpleNamespace
    arrival_time: float = 0.0
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    max_tokens: int = 1 << 30
    is_prefill_chunk: bool = True
    use_structured_output: bool = False
    mm_features: tuple[object, ...] = ()


class Scheduled(NamedTuple):
    """A step of all requests: vLLM's output, the requests that get tokens, and the work without the drafter's."""

    output: SimpleNamespace
    delivering: list[str]
    work: Work


class Requests:
    """The running requests of one engine by name, and the sources that begin them.

    `by_source` has, for each running source, the decodes of its requests so far and the sum of their K. `ended` are
    the names of requests that ended since the last step.
    """

    def __init__(self, rng: np.random.Generator, reply_tokens: float) -> None:
        self._rng = rng
        self._reply_tokens = reply_tokens
        self._random = self._drawn_numbers()
        self._begun = 0
        self.restart()

    def restart(self) -> None:
        """Drop all requests and sources."""
        self.running: dict[str, Request] = {}
        self._new: dict[str, Request] = {}
        self.ended: set[str] = set()
        self.by_source = np.zeros((0, 2))
        self._sources: list[Source] = []

    def settle(self, sources: list[Source]) -> None:
        """Switch to these sources: drop requests of others, and begin the missing ones."""
        if sources == self._sources:
            return
        before, self._sources = self._sources, sources
        self.by_source = np.zeros((len(sources), 2))
        counts: Counter[int] = Counter()
        for request in list(self.running.values()):
            source = before[request.source]
            at = sources.index(source) if source in sources else None
            if at is None or counts[at] >= round(sources[at].running):
                self._end(request)
            else:
                request.source = at
                counts[at] += 1
        for at, source in enumerate(sources):
            for _ in range(round(source.running) - counts[at]):
                self._begin(at, is_first=True)

    def take_begun(self) -> list[Request]:
        """Return the requests that have begun since the last call."""
        begun, self._new = [*self._new.values()], {}
        return begun

    def replace(self, over: list[Request]) -> None:
        """End these requests, and begin as many of the same sources."""
        for request in over:
            self._end(request)
        for request in over:
            self._begin(request.source)

    def _begin(self, at: int, *, is_first: bool = False) -> None:
        """Begin a request of a source; the first ones begin within their replies."""
        source = self._sources[at]
        length = self._reply_tokens * self._rng.uniform(0.5, 1.5)
        acceptance = self._acceptance(source.kind)
        later = acceptance if source.turns_to is None else self._acceptance(source.turns_to)
        position = int(self._rng.uniform(0, length)) if is_first else 0
        is_hot = isinstance(source.kind, str) and source.kind.endswith(_HOT)
        sampling = SimpleNamespace(
            extra_args={CLASS_ARGUMENT: source.label},
            temperature=1.0 if is_hot else 0.0,
            min_tokens=0,
            all_stop_token_ids=(),
        )
        self._begun += 1
        name = str(self._begun)
        self.running[name] = self._new[name] = Request(
            name, at, acceptance, later, length, source.prompt_tokens, position, sampling,
            num_computed_tokens=source.cached_tokens + position,
        )  # fmt: skip

    def _end(self, request: Request) -> None:
        del self.running[request.request_id]
        self._new.pop(request.request_id, None)
        self.ended.add(request.request_id)

    def _acceptance(self, kind: str | float) -> float:
        if not isinstance(kind, str):
            return kind
        quantiles = ACCEPTANCE[kind]
        return float(np.interp(self._rng.uniform(0, len(quantiles) - 1), range(len(quantiles)), quantiles))

    def _drawn_numbers(self) -> Iterator[float]:
        """Yield random numbers from 0 to 1."""
        while True:
            yield from self._rng.random(_RANDOM_BLOCK).tolist()

    def scheduled(self, k_of: Callable[[str], int]) -> Scheduled:
        """Schedule all requests for a step; `k_of` gives the drafted tokens of one that decodes."""
        tokens: dict[str, int] = {}
        drafts: dict[str, Sequence[int]] = {}
        delivering: list[str] = []
        chunk, decodes, verified, prefill, context, prompts = _PREFILL_CHUNK, 0, 0, 0, 0, 0
        draft_context = drafted_context = 0
        lengths: set[int] = set()  # tokens of each request that decodes
        for name, request in self.running.items():
            if request.to_read:
                scheduled = min(chunk, request.to_read)
                if not scheduled:
                    continue
                chunk -= scheduled
                request.to_read -= scheduled
                request.is_prefill_chunk = request.to_read > 0
                prefill += scheduled
                prompts += 1
            else:
                k = k_of(name)
                if k:
                    drafts[name] = range(k)
                scheduled = 1 + k
                decodes += 1
                verified += scheduled
                lengths.add(scheduled)
                self.by_source[request.source] += (1, k)
            tokens[name] = scheduled
            request.num_computed_tokens += scheduled
            context += request.num_computed_tokens
            if name in drafts:
                drafted_context += request.num_computed_tokens
                draft_context += len(drafts[name]) * request.num_computed_tokens
            if not request.is_prefill_chunk:
                delivering.append(name)
        ended, self.ended = self.ended, set()
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=ended,
            scheduled_new_reqs=(),
        )
        work = Work(
            decodes, verified, prefill=prefill, context=context, prompts=prompts, is_uniform=len(lengths) <= 1,
            draft_context=draft_context, drafted_context=drafted_context,
        )  # fmt: skip
        return Scheduled(output, delivering, work)

    def accepted(self, request: Request, k: int) -> int:
        """Draw the number of accepted tokens of a request's `k` drafted ones."""
        is_late = request.num_output_tokens >= request.length / 2
        acceptance = request.later if is_late else request.acceptance
        for at in range(k):
            if next(self._random) >= acceptance:
                return at
        return k

"""Engines for the pure choice: what `gateway.routing.balance.Candidate` asks for, and nothing else."""

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import strategies as st

from specpilot.gateway.routing.outlier_detection import OutlierDetection
from specpilot.gateway.routing.session import hash_of
from specpilot.gateway.wire.request_facts import RequestFacts, read_facts

CHAT = "/v1/chat/completions"


@dataclass
class One:
    """An engine."""

    work_tokens: float | None = 0.0
    is_draining: bool = False
    outlier_detection: OutlierDetection = field(default_factory=OutlierDetection)
    engine_id: str = "e"

    @property
    def engine_hash(self) -> int:
        return hash_of(self.engine_id)


def ejected(now: float = 0.0) -> OutlierDetection:
    outlier_detection = OutlierDetection()
    outlier_detection.eject(now)
    return outlier_detection


def fleet(count: int, work_tokens: float = 0.0) -> list[One]:
    """Engines that differ in nothing but their names."""
    return [One(work_tokens, engine_id=f"10.0.0.{at}:8000") for at in range(count)]


def facts(body: dict[str, Any] | None = None, path: str = CHAT) -> RequestFacts:
    return read_facts(path, orjson.dumps({"model": "tiny", **(body or {})}))


def chat(*texts: str, **fields: Any) -> RequestFacts:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[at and 1 + (at + 1) % 2], "content": text} for at, text in enumerate(texts)]
    return facts({"messages": messages, **fields})


@st.composite
def fleets(draw: st.DrawFn, least: int = 0) -> list[One]:
    """Fleets of engines in every state, some of them all alike."""
    states = draw(
        st.lists(
            st.tuples(st.none() | st.integers(0, 10**6).map(float), st.booleans(), st.booleans()),
            min_size=least,
            max_size=6,
        )
    )
    return [
        One(work, is_draining, ejected() if is_ejected else OutlierDetection(), f"e{at}")
        for at, (work, is_draining, is_ejected) in enumerate(states)
    ]

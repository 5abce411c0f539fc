"""Virtual traffic: phases with numbers of running requests of each acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specpilot.policy.names import DEFAULT_CLASS

ACCEPTANCE: Mapping[str, tuple[float, ...]] = {
    "chat": (0.32, 0.42, 0.46, 0.54, 0.61, 0.69, 0.76, 0.79, 0.84),
    "chat_hot": (0.04, 0.07, 0.10, 0.10, 0.12, 0.14, 0.20, 0.56, 0.69),
    "code": (0.17, 0.27, 0.34, 0.38, 0.43, 0.46, 0.51, 0.66, 0.92),
    "code_hot": (0.07, 0.09, 0.10, 0.11, 0.12, 0.13, 0.15, 0.17, 0.25),
    "json": (0.95, 0.97, 0.98, 0.98, 0.98, 0.99, 0.99, 0.99, 1.00),
    "json_hot": (0.82, 0.84, 0.86, 0.86, 0.87, 0.88, 0.89, 0.90, 0.92),
}
"""Nine quantiles of the conditional acceptance of 457 requests of the demo pair, from 24,064 drafts at K = 7, by kind;
`_hot` at temperature 1. It was constant within a request (the correlation of neighbouring drafts was 0.0 to 0.2)."""


@dataclass(frozen=True)
class Source:
    """Requests of one kind (a key of `ACCEPTANCE`, or an acceptance): `running` at a time.

    Replies change to the kind `turns_to` half-way. `prompt_tokens` are prefilled, in chunks; the adapter's planner does
    not count a single token as a prompt.
    """

    kind: str | float
    running: float
    label: str = DEFAULT_CLASS
    turns_to: str | float | None = None
    prompt_tokens: int = 16

    @property
    def cached_tokens(self) -> int:
        """Tokens before its prompt that the engine has in its prefix cache."""
        return 0


@dataclass(frozen=True)
class LongSource(Source):
    """Requests with a long context, most of which the engine has in its prefix cache, as in a conversation."""

    cached_tokens: int = 100_000


@dataclass(frozen=True)
class Phase:
    """Traffic for some seconds. `slowdown` multiplies the step times."""

    seconds: int
    sources: Sequence[Source]
    slowdown: float = 1.0

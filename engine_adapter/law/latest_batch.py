"""The decodes of an engine's latest step, and the K of groups that an override keeps. Pure.

Objects are replaced as a whole, because the scheduler's thread and others read them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from specpilot.engine_adapter.evidence.request_acceptance import Acceptance
from specpilot.engine_adapter.law.batch_choice import Requirements
from specpilot.engine_adapter.law.contexts import Contexts, without_octave


class Request(Protocol):
    """The attributes of a decoding request that the law reads."""

    label: str
    acceptance: Acceptance
    context: int


class LatestBatch(NamedTuple):
    """The decodes of the latest step, and the codes of their groups, octaves apart."""

    requirements: Requirements
    codes: Sequence[int]
    requests: Sequence[Request]

    @property
    def lengths(self) -> Sequence[int]:
        """The lengths of their contexts."""
        return [request.context for request in self.requests]

    def groups(self, contexts: Contexts) -> Sequence[int]:
        """Return the code of each decode's group."""
        return self.codes if math.isinf(contexts.unit) else contexts.groups(self.codes, self.lengths)


class HeldK(NamedTuple):
    """K by group that is kept, of groups of these requirements and contexts; empty: the static K."""

    requirements: Requirements
    k_of: Mapping[int, int]
    contexts: Contexts = Contexts()

    def groups(self, latest: LatestBatch) -> Sequence[int]:
        """Return the code of each decode's group; a context that was not there then is in the group of short ones."""
        codes = latest.groups(self.contexts)
        return [code if code in self.k_of else without_octave(code) for code in codes]

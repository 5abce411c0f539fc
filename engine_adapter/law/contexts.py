"""Which decodes get a K of their own for the length of their context, and what a draft token of theirs costs. Pure.

A draft token takes `Prices.draft_context_s` for each token of its request's context. Where that is nothing, as with
kernels that read a context once for all tokens of a request, all decodes are alike. Otherwise decodes are grouped by
octaves of it: below the *unit*, a context whose price for one draft token is `LEAST_TOKENS` tokens at the rate of a
batch at K = 0; up to twice the unit; and so on, up to half a token and more, where hardly any draft token pays.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.prices import Prices

CONTEXT_AT, REQUIREMENT_AT = UNPROBED.bit_length(), UNPROBED.bit_length() + 3
"""A group's code is a number. It has the code of `request_acceptance.Acceptance` (band and `UNPROBED`), from the bit
`CONTEXT_AT` on the octave of its contexts, and from the bit `REQUIREMENT_AT` on the index of its requirement."""

LEAST_TOKENS = 1 / 32
"""A smaller value tells more contexts apart, and an octave more is eight groups more to choose for."""

OCTAVES = 6
"""Below 1/32, 1/16, 1/8, 1/4 and 1/2 of a token, and above."""

MOST_UNIT = 1 << 22
"""Tokens of context; if no shorter one matters, none does."""


class Contexts(NamedTuple):
    """The unit in tokens, and by octave the further seconds of a draft token beyond those at the prices' mean context.

    The context of an octave is the mean of the decodes in it, without any its middle. If all contexts are below the
    unit, all decodes count as of the mean context.
    """

    unit: float = math.inf
    extra_s: Sequence[float] = (0.0,) * OCTAVES

    @classmethod
    def of(cls, prices: Prices, n: int, lengths: Sequence[int]) -> "Contexts":
        """Return those of an engine with `n` decodes running, the latest of which have contexts of these `lengths`."""
        unit = LEAST_TOKENS * prices.plain_s(n) / n / max(prices.draft_context_s, 1e-30)
        if unit > MOST_UNIT or not lengths:
            return cls()
        of_octave: list[list[float]] = [[] for _ in range(OCTAVES)]
        for length in lengths:
            of_octave[_octave(length, unit)].append(length)
        middle = [unit * (1.5 * 2.0 ** (at - 1) if at else 0.5) for at in range(OCTAVES)]
        typical = [fmean(present or [usual]) for present, usual in zip(of_octave, middle, strict=True)]
        if not any(of_octave[1:]):
            typical[0] = prices.context_tokens
        return cls(unit, [prices.draft_context_s * (length - prices.context_tokens) for length in typical])

    def groups(self, codes: Sequence[int], lengths: Sequence[int]) -> Sequence[int]:
        """Return the codes of decodes, given those without octaves and the lengths of their contexts."""
        unit = self.unit
        if max(lengths, default=0) < unit:
            return codes
        return [code | _octave(length, unit) << CONTEXT_AT for code, length in zip(codes, lengths, strict=True)]

    def extra_of(self, code: int) -> float:
        """Return the further seconds of a draft token of the group with this code."""
        return self.extra_s[_octave_of(code)]

    def least_of(self, code: int) -> int:
        """Return the shortest context of the group with this code, in tokens."""
        octave = _octave_of(code)
        return round(self.unit * 2.0 ** (octave - 1)) if octave else 0


def _octave_of(code: int) -> int:
    return code >> CONTEXT_AT & (1 << REQUIREMENT_AT - CONTEXT_AT) - 1


def _octave(length: int, unit: float) -> int:
    return min(int(length / unit).bit_length(), OCTAVES - 1)


def without_octave(code: int) -> int:
    """Return the code of the group of short contexts that is otherwise the same."""
    return code & ~((1 << REQUIREMENT_AT) - (1 << CONTEXT_AT))

"""The time of a step of one engine as a sum of priced parts, for the choice of K and for its estimate.

    T = base + decode n + g(m + P) + [D > 0] (drafter + drafting_decode n) + slot D + pass S + prefill P
        + context X + [m > n] verifying_context X + draft_context Y
        + [R > 0] reads + read R + piecewise W + graphless G + drafter_graphless H

in seconds, with the prices of `PARTS`. n: running decodes; m: tokens to verify, one for each decode and one for each
draft token; P: prefilled tokens; D: slots of the drafter; S: passes of a sequential drafter after its first one, which
all requests of the step share (0 if it makes the same passes in every step); X: tokens of context; Y: the sum, over the
draft tokens to verify, of their requests' context; R: positions that the drafter reads without drafting from them
(`StepPlan.read`); g: piecewise linear and not decreasing. With CUDA graphs, m + P and D are the padded sizes of the
passes. W is 1 if the target's pass runs piecewise graphs, G is 1 if it has no graph, and H is 1 if the pass of a
parallel drafter is larger than its largest graph; otherwise they are 0.

What a context costs depends on the attention kernel (vLLM 0.32). A kernel that reads the keys and values of a request
once for all its tokens, and waits for memory, has a price for X alone: FlashAttention 3 and TRT-LLM's, up to some 64
rows of draft tokens times query heads per key head. FlashAttention 2 and Triton's split a context among processors only
if no request has more than one token, so each step that verifies reads its contexts more slowly, whatever the K:
`verifying_context`. Kernels that wait for arithmetic (a CPU's vector units; latent attention with all heads on one GPU)
need as much time for each draft token as for the first token: `draft_context`. The drafter reads contexts too. Steps
cannot tell this apart, because a request that has slots in one step has drafts to verify in the next: it is in the last
two prices.

In a *uniform* step all decodes have the same number of tokens. Such a step may have a FULL graph. Any other step is
*mixed*. If it has decodes alone, and there are graphs of variable length, it is padded to one of these, else to a mixed
graph.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.law.graphs import Graphs

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
FULL_MODE = "FULL"
KNOTS = np.array([0.0, *(width * 2.0**octave for octave in range(2, 12) for width in (1.0, 1.5)), 4096.0])
"""The numbers of tokens at which the slope of g changes."""
EDGES = np.append(KNOTS, 1e7)
LEAST_TOKEN_S = 1e-9
PARTS = (
    "base", "decode", "drafter", "drafting_decode", "slot", "pass", "prefill", "context", "verifying_context",
    "draft_context", "reads", "read", "piecewise", "graphless", "drafter_graphless",
)  # fmt: skip
"""The names of the parts, in the order of `Coefficients.parts`."""


class StepExtras(NamedTuple):
    """The share of steps that prefill, their mean number of prefilled tokens, and the mean context.

    `context_tokens` is the mean length of a running request's sequence.
    """

    prefill_ratio: float = 0.0
    prefill_tokens: float = 0.0
    context_tokens: float = 0.0


class Shape(NamedTuple):
    """The padded size of a step.

    `piecewise` is 1 if the target's pass runs piecewise graphs. `graphless` and `drafter_graphless` are 1 if the pass
    of the target, or of the drafter, has no graph.
    """

    tokens: float
    slots: float
    piecewise: float = 0.0
    graphless: float = 0.0
    drafter_graphless: float = 0.0


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Not negative: `parts`, the prices of `PARTS` (s), and `slopes`, those of g between `KNOTS` (s per token)."""

    parts: tuple[float, ...]
    slopes: tuple[float, ...]


class Prices:
    """T, without the slowdown factor, by `coefficients` and `extras`, for steps of at most `most` tokens to verify.

    The time of prefilling alone is left out, because K does not change it: `prompts_s` is that of the mean step, for
    latencies. All decodes have the mean context (`law.contexts` has what a decode's own context changes). A step that
    drafts for d of its n decodes is charged `left_out_s` d / n for each of the n - d decodes that it leaves out: the
    measured time in which they catch up later.

    `least_width` is that of a drafter that runs in every step (`plan.catch_up`), so that all decodes have slots;
    `None`: those with K = 0 are left out. `narrowest` is the least width of a step that drafts.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the facts of an engine
        self,
        coefficients: Coefficients,
        most: int,
        graphs: Graphs | None = None,
        extras: StepExtras = StepExtras(),  # noqa: B008 - frozen
        left_out_s: float = 0.0,
        least_width: int | None = None,
        narrowest: int = 1,
    ) -> None:
        self.coefficients = coefficients
        self._c = dict(zip(PARTS, coefficients.parts, strict=True))
        self.has_graphs = graphs is not None
        self.need_one_k = graphs is not None and graphs.need_one_k
        self._graphs = graphs
        self._extras = extras
        self._most = most
        self._heights = np.concatenate([[0.0], np.cumsum(np.array(coefficients.slopes) * np.diff(EDGES))])
        self.left_out_s = left_out_s
        self.slot_s, self.read_s, self.reads_s = self._c["slot"], self._c["read"], self._c["reads"]
        self.pass_s = self._c["pass"]
        self.draft_context_s, self.context_tokens = self._c["draft_context"], extras.context_tokens
        self._own_context_s = self.draft_context_s * extras.context_tokens  # of a draft token of the mean request
        self.least_width, self.narrowest = least_width, narrowest
        tokens = np.arange(most + 1)
        prefilled = round(extras.prefill_tokens)
        prompts_s = float(self._pass_s(np.array([prefilled]))[0])
        self._with_prefill = self._pass_s(tokens + prefilled) - prompts_s
        self.prompts_s = extras.prefill_ratio * (prompts_s + self._c["prefill"] * extras.prefill_tokens)
        self.mixed = (1 - extras.prefill_ratio) * self._decodes_s(tokens) + extras.prefill_ratio * self._with_prefill
        self.mixed += self._own_context_s * tokens
        self._drafter = self._drafter_s(np.arange(2 * most + 1)) if graphs is not None and graphs.drafter else None
        self._plain_s: dict[int, float] = {}
        self._token_s: dict[int, Vector] = {}
        self._uniform_extra: dict[int, Vector] = {}

    def step_s(self, n: int, m: int, slots: int, width: int = 0, *, is_uniform: bool = False) -> float:
        """Return the seconds of a step of `n` decodes, without prefill and without catching up."""
        c = self._c
        seconds = self._fixed_s(n) + (self.uniform_s(n, m // n) if is_uniform else float(self.mixed[m]))
        if m > n:
            seconds += self._verifying_s(n)
        if slots:
            seconds += c["drafter"] + c["drafting_decode"] * n + c["slot"] * slots + self.passes_s(width)
            seconds += float(self._drafter[min(m - n + slots, 2 * self._most)]) if self._drafter is not None else 0.0
        return seconds

    def plain_s(self, n: int) -> float:
        """Return the seconds of a step of `n` decodes in which K is 0 for all."""
        seconds = self._plain_s.get(n)
        if seconds is None:
            seconds = self._plain_s[n] = self.step_s(n, n, self.slots(n, 0, 0), is_uniform=True)
        return seconds

    def slots(self, n: int, width: Any, drafted: Any) -> Any:
        """Return the slots of a step that drafts for `drafted` of its `n` decodes, at most `width` tokens each.

        `width` and `drafted` are numbers or arrays, and so is the result.
        """
        laid_out = np.where(width, np.maximum(width, self.narrowest), 0)
        return laid_out * drafted if self.least_width is None else np.maximum(laid_out, self.least_width) * n

    def passes_s(self, width: Any) -> Any:
        """Return the seconds of a drafter's passes after its first one at this width, a number or an array."""
        return self.pass_s * np.maximum(width - 1, 0)

    def steps_s(self, n: int, m: Ints, slots: Ints, width: Ints) -> Vector:
        """Return the seconds of mixed steps of `n` decodes by tokens to verify, slots and width.

        The drafter's pass and a verification are in it, also where the slots are 0.
        """
        c = self._c
        fixed_s = self._fixed_s(n) + self._verifying_s(n) + c["drafter"] + c["drafting_decode"] * n
        seconds: Vector = self.mixed[m] + fixed_s
        seconds += c["slot"] * slots + self.passes_s(width)
        if self._drafter is not None:
            seconds += self._drafter[np.minimum(m - n + slots, 2 * self._most)]
        return seconds

    def token_s(self, n: int, k_max: int) -> Vector:
        """Return the mean seconds per token to verify for `n` decodes, by K from 1 to `k_max`."""
        seconds = self._token_s.get(n)
        if seconds is None:
            k = np.arange(1, k_max + 1)
            seconds = np.maximum((self.mixed[n * (1 + k)] - self.mixed[n]) / (n * k), LEAST_TOKEN_S)
            self._token_s[n] = seconds
        return seconds

    def uniform_extra_s(self, n: int, k_max: int) -> Vector:
        """Return the target's seconds in a uniform step minus those in a mixed one, for K from 0 to `k_max`."""
        extra_s = self._uniform_extra.get(n)
        if extra_s is None:
            lengths = range(1, k_max + 2)
            extra_s = np.array([self.uniform_s(n, length) - float(self.mixed[n * length]) for length in lengths])
            self._uniform_extra[n] = extra_s
        return extra_s

    def uniform_s(self, n: int, length: int) -> float:
        """Return the seconds of the target's pass if all `n` decodes have `length` tokens in it."""
        m = n * length
        if self._graphs is None:
            return float(self.mixed[m])
        shape = padded(self._graphs, n, m, 0, 0, is_uniform=True)
        full = float(np.interp(shape.tokens, EDGES, self._heights))
        full += self._c["piecewise"] * shape.piecewise + self._c["graphless"] * shape.graphless
        ratio = self._extras.prefill_ratio
        return (1 - ratio) * full + ratio * float(self._with_prefill[m]) + self._own_context_s * m

    def catch_up_s(self, n: int) -> float:
        """Return the seconds in which `n` left-out decodes catch up later, at most the time of drafting for them."""
        c = self._c
        return min(n * self.left_out_s, c["drafter"] + n * (c["drafting_decode"] + c["slot"]))

    def _fixed_s(self, n: int) -> float:
        each_s = self._c["decode"] + self._c["context"] * self._extras.context_tokens - self._own_context_s
        return self._c["base"] + each_s * n

    def _verifying_s(self, n: int) -> float:
        return self._c["verifying_context"] * self._extras.context_tokens * n

    def _decodes_s(self, tokens: Ints) -> Vector:
        """Return the seconds of the target's pass over so many tokens in a step of decodes alone, with different K."""
        other = self._pass_s(tokens)
        if self._graphs is None or not self._graphs.varlen:
            return other
        laid_out, has_graph = _up(self._graphs.varlen, tokens)
        seconds: Vector = np.where(has_graph, np.interp(laid_out, EDGES, self._heights), other)
        return seconds

    def _pass_s(self, tokens: Ints) -> Vector:
        """Return the seconds of the target's pass over so many tokens of a step of any kind, prompts included."""
        if self._graphs is None:
            plain: Vector = np.interp(tokens, EDGES, self._heights)
            return plain
        laid_out, has_graph = _up(self._graphs.mixed, tokens)
        missing = np.where(has_graph, self._c["piecewise"] * (self._graphs.mode != FULL_MODE), self._c["graphless"])
        seconds: Vector = np.interp(laid_out, EDGES, self._heights) + missing
        return seconds

    def _drafter_s(self, tokens: Ints) -> Vector:
        """Return the seconds that padding or a missing graph adds to a pass of the drafter over so many tokens."""
        assert self._graphs is not None
        laid_out, has_graph = _up(self._graphs.drafter, tokens)
        seconds: Vector = np.where(has_graph, self._c["slot"] * (laid_out - tokens), self._c["drafter_graphless"])
        return seconds


def padded(  # noqa: PLR0913 - the parts of a step
    graphs: Graphs | None, n: int, m: int, slots: int, prefill: int, *, is_uniform: bool
) -> Shape:
    """Return the `Shape` of a step of `n` decodes."""
    if graphs is None:
        return Shape(m + prefill, slots)
    tokens, piecewise, graphless = float(m + prefill), 0.0, 0.0
    uniform: Sequence[int] = graphs.uniform.get(m // n, ()) if is_uniform and n else ()
    fitting = [sizes for sizes in (uniform, graphs.varlen) if not prefill and sizes and m <= sizes[-1]]
    if fitting:
        tokens = fitting[0][bisect_left(fitting[0], m)]
    else:
        at = bisect_left(graphs.mixed, tokens)
        graphless = float(at == len(graphs.mixed))
        piecewise = float(not graphless and graphs.mode != FULL_MODE)
        tokens = tokens if graphless else graphs.mixed[at]
    if not slots or not graphs.drafter:
        return Shape(tokens, slots, piecewise, graphless)
    drafted = m - n + slots + prefill
    at = bisect_left(graphs.drafter, drafted)
    if at == len(graphs.drafter):
        return Shape(tokens, slots, piecewise, graphless, 1.0)
    return Shape(tokens, slots + graphs.drafter[at] - drafted, piecewise, graphless)


def _up(sizes: Sequence[int], tokens: Ints) -> tuple[Vector, NDArray[np.bool_]]:
    """Return the captured size to which so many tokens are padded, and whether there is one."""
    ladder = np.array(sizes or (0,), dtype=np.float64)
    at = np.searchsorted(ladder, tokens)
    has_graph = at < len(ladder)
    return np.where(has_graph, ladder[np.minimum(at, len(ladder) - 1)], tokens), has_graph

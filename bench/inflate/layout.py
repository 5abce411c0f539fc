"""The places of a small model's weights in a large one, such that the large one computes the same. Pure.

h is the small model's hidden size, H the large one's.

*Stream.* The residual stream's first h dimensions are the small model's. Copies of them follow, m in all, such that
f = H / (h m) is a power of 4. Matrices that write to the stream write every copy; the small model's reads are from the
first. The other dimensions are *new*.

*Norms.* RMSNorm divides by sqrt(mean(x^2) + epsilon). With m copies the mean is 1 / f of the small model's, so weights
are divided by sqrt(f), a power of 2, and epsilon by f. Both are exact in any binary format.

*Constants.* Each new dimension holds +c or -c, by token. c is so small that all of them together are at most 0.4 of
epsilon, and epsilon is lowered by this amount. A norm scales them to about 1, so that new weights multiply numbers of a
real model's size, and a GPU has the power draw and the clock rate of a real model. The last dimension, the *marker*,
holds +c for each token; norms drop it, and the last norm makes it so large that a new token's logit, which reads it
with a negative weight, is about -2^20: no new token is ever likely.

*Heads.* Attention head r of key-value head j becomes head r of the new group j. When heads become s times as wide, a
rotary pair moves to the place of the same frequency, and queries are multiplied by sqrt(s), because attention divides
by the square root of the width.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from specpilot.bench.inflate.number_format import Array

MARKER_POWER = 20
"""log2 of minus the logit of a new token when the root mean square of the stream is 1."""
EPSILON_SHARE = 0.4
"""Largest share of epsilon for the constants: more leaves too little of it to be exact."""


class LayoutError(Exception):
    """A model does not fit into a larger shape; the message has the reason."""


class Rows(NamedTuple):
    """Rows of a matrix with `height` rows: the small model's are at `small`; `cleared` ones read no new dimension."""

    height: int
    small: Array
    cleared: Array


class Layout:
    """Places of a model of the configuration `small` in one of the configuration `large` (Hugging Face's names)."""

    def __init__(self, small: Mapping[str, Any], large: Mapping[str, Any]) -> None:
        self.small_hidden, self.hidden = small["hidden_size"], large["hidden_size"]
        self.small_inner, self.inner = small["intermediate_size"], large["intermediate_size"]
        self.vocabulary = small["vocab_size"]
        self.small_layers = small["num_hidden_layers"]
        self._place_heads(small, large)
        self._check(small, large)
        self.copies, self.is_exact = _copies(self.hidden, self.small_hidden, 1 if self.query_scale_is_exact else 2)
        self.factor = self.hidden / (self.small_hidden * self.copies)
        self.stream = np.arange(self.small_hidden)
        self.first_new = self.small_hidden * self.copies
        self.marker = self.hidden - 1
        self._place_constants(small["rms_norm_eps"])

    @property
    def query_scale_is_exact(self) -> bool:
        """Whether queries are multiplied by a whole number."""
        return self.query_scale.is_integer()

    def columns(self, blocks: int) -> Array:
        """Return the small model's columns of a matrix that reads `blocks` concatenated streams."""
        return np.concatenate([block * self.hidden + self.stream for block in range(blocks)])

    def _place_heads(self, small: Mapping[str, Any], large: Mapping[str, Any]) -> None:
        width, new_width = head_dim(small), head_dim(large)
        kv_heads = small["num_key_value_heads"]
        group = small["num_attention_heads"] // kv_heads
        self._group, self._new_group = group, large["num_attention_heads"] // large["num_key_value_heads"]
        stretch, half = new_width // width, width // 2
        inside = np.concatenate([stretch * np.arange(half), stretch * np.arange(half) + new_width // 2])
        heads = [kv * self._new_group + member for kv in range(kv_heads) for member in range(group)]
        self.queries = Rows(
            large["num_attention_heads"] * new_width,
            np.concatenate([head * new_width + inside for head in heads]),
            np.concatenate([head * new_width + np.arange(new_width) for head in heads]),
        )
        self.keys = Rows(
            large["num_key_value_heads"] * new_width,
            np.concatenate([head * new_width + inside for head in range(kv_heads)]),
            np.arange(kv_heads * new_width),
        )
        self.units = Rows(self.inner, np.arange(self.small_inner), np.arange(self.small_inner))
        self.query_scale = math.sqrt(stretch)

    def _place_constants(self, epsilon: float) -> None:
        count = self.hidden - self.first_new
        share = EPSILON_SHARE * epsilon / self.factor * self.hidden / count
        self.constant = 2.0 ** math.floor(0.5 * math.log2(share))
        self.epsilon = epsilon / self.factor - self.constant**2 * count / self.hidden
        lifted = round(math.log2(self.constant * math.sqrt(self.factor)))
        self.new_norm = 2.0**-lifted
        power = MARKER_POWER - lifted
        self.marker_norm, self.marker_head = 2.0 ** (power // 2), -(2.0 ** (power - power // 2))

    def _check(self, small: Mapping[str, Any], large: Mapping[str, Any]) -> None:
        needs = {
            "hidden size": self.hidden > self.small_hidden,
            "layers": large["num_hidden_layers"] >= small["num_hidden_layers"],
            "key-value heads": large["num_key_value_heads"] >= small["num_key_value_heads"],
            "heads for each key-value head": self._new_group >= self._group,
            "head dimension (a multiple of the small model's)": head_dim(large) % head_dim(small) == 0,
            "intermediate size": self.inner >= self.small_inner,
            "vocabulary": large["vocab_size"] >= self.vocabulary,
        }
        missing = [name for name, is_held in needs.items() if not is_held]
        if missing:
            raise LayoutError(f"the shape is too small in {', '.join(missing)}")


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the width of an attention head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _copies(hidden: int, small_hidden: int, least: int) -> tuple[int, bool]:
    """Return the number of copies of the small stream in the large one, and whether norms are exact with it."""
    for copies in range(least, math.ceil(hidden / small_hidden)):
        factor = hidden / small_hidden / copies
        power = round(math.log(factor, 4))
        if power >= 0 and factor == 4.0**power:
            return copies, True
    return least, False

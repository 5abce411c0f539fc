"""The matrices of a large model that computes the same as a small one.

A matrix has the small one's numbers in their places (`layout`) and random numbers elsewhere: nearly all multiplications
then have random operands, as in a trained model. New rows and columns cannot change the small model's result, because
they do not write to its dimensions. Their outputs in new dimensions are below the rounding of the constants there.
"""

import math
import zlib
from collections.abc import Mapping

import numpy as np

from specpilot.bench.inflate.layout import Layout, Rows
from specpilot.bench.inflate.number_format import Array, NumberFormat

SPREAD = 0.02
"""Standard deviation of random weights, that of a model before its training."""
FAINT = 2.0**-32
"""Standard deviation of weights that write to new dimensions."""

_TILE = 8_388_593
"""Length of the tile of random numbers; a prime, so that rows which repeat it begin at different places."""


class Filler:
    """Random numbers, the same for the same name: one repeated tile, from an offset that the name determines."""

    def __init__(self, numbers: NumberFormat) -> None:
        self._numbers = numbers
        self._random = np.random.default_rng(0)
        normal = self._random.standard_normal(_TILE, np.float32)
        self._tiles = {spread: numbers.store(normal * np.float32(spread)) for spread in (SPREAD, FAINT)}
        self._bits = self._random.integers(0, 2, _TILE, np.uint8)

    def normal(self, name: str, shape: tuple[int, ...], spread: float = SPREAD) -> Array:
        """Return normally distributed numbers."""
        return self._repeat(shape, self._tiles[spread], zlib.crc32(name.encode()) % _TILE)

    def signs(self, shape: tuple[int, ...], size: float) -> Array:
        """Return `size` and `-size` at random; the same in every call of one shape."""
        pair = self._numbers.store(np.array([-size, size], np.float32))
        return self._repeat(shape, pair[self._bits], 0)

    def _repeat(self, shape: tuple[int, ...], tile: Array, at: int) -> Array:
        made = np.empty(shape, self._numbers.stored)
        flat, filled = made.reshape(-1), 0
        while filled < flat.size:
            some = min(flat.size - filled, tile.size - at)
            flat[filled : filled + some] = tile[at : at + some]
            filled, at = filled + some, 0
        return made


class Matrices:
    """Makes the matrices of one model from those of `small`: float32 arrays by name.

    Each method's `name` is the small model's tensor, `None` for a layer that it does not have.
    """

    def __init__(self, layout: Layout, numbers: NumberFormat, filler: Filler, small: Mapping[str, Array]) -> None:
        self.layout, self.numbers, self.filler, self.small = layout, numbers, filler, small

    def norm(self, name: str | None = None, *, is_last: bool = False) -> Array:
        """Return the weights of a norm."""
        at = self.layout
        weights = np.full(at.hidden, at.new_norm, np.float32)
        small = self.small[name] if name else np.ones(at.small_hidden, np.float32)
        weights[: at.first_new] = np.tile(small, at.copies) / math.sqrt(at.factor)
        weights[at.marker] = at.marker_norm if is_last else 0.0
        return self.numbers.store(weights)

    def reader(self, name: str | None, key: str, rows: Rows, blocks: int = 1, scale: float = 1.0) -> Array:
        """Return a matrix that reads `blocks` streams, the small one's rows multiplied by `scale`.

        A `scale` that is not whole is exact in short numbers too: the second copy of the stream is read with the
        rounding error of the first one's weights.
        """
        matrix = self.filler.normal(key, (rows.height, blocks * self.layout.hidden))
        if name is None:
            return matrix
        small, columns = self.small[name] * np.float32(scale), self.layout.columns(blocks)
        matrix[rows.cleared] = 0
        matrix[np.ix_(rows.small, columns)] = stored = self.numbers.store(small)
        if self.numbers.is_short and not float(scale).is_integer():
            lost = self.numbers.store(small - self.numbers.load(stored))
            matrix[np.ix_(rows.small, columns + self.layout.small_hidden)] = lost
        return matrix

    def writer(self, name: str | None, key: str, read: Rows) -> Array:
        """Return a matrix that writes the outputs of the rows `read` to the stream."""
        at = self.layout
        matrix = self.filler.normal(key, (at.hidden, read.height), FAINT)
        matrix[: at.first_new] = 0
        matrix[at.marker] = 0
        if name is not None:
            self._in_every_copy(matrix, read.small, self.small[name])
        return matrix

    def embedding(self, name: str, vocabulary: int) -> Array:
        """Return the embeddings: the small model's in every copy, and constants in new dimensions."""
        at = self.layout
        matrix = self.filler.signs((vocabulary, at.hidden), at.constant)
        matrix[:, : at.first_new] = 0
        small = self.numbers.store(self.small[name])
        matrix[: len(small), : at.first_new] = np.tile(small, (1, at.copies))
        matrix[:, at.marker] = self.numbers.store(np.array([at.constant]))[0]
        return matrix

    def logits(self, name: str, vocabulary: int) -> Array:
        """Return the matrix of the logits, in which new tokens are never likely."""
        at = self.layout
        matrix = self.filler.normal("logits", (vocabulary, at.hidden))
        small = self.numbers.store(self.small[name])
        matrix[: len(small)] = 0
        matrix[: len(small), : at.small_hidden] = small
        matrix[len(small) :, at.marker] = self.numbers.store(np.array([at.marker_head]))[0]
        return matrix

    def fusion(self, name: str, target: Layout) -> Array:
        """Return a head's matrix from the concatenated hidden states of several target layers to its own stream.

        It passes on the constants in the first layer's new dimensions.
        """
        at, small = self.layout, self.small[name]
        blocks = small.shape[1] // target.small_hidden
        matrix = self.filler.normal(name, (at.hidden, blocks * target.hidden), FAINT)
        matrix[: at.first_new] = 0
        matrix[at.marker] = 0
        self._in_every_copy(matrix, target.columns(blocks), small)
        new = np.arange(at.first_new, at.hidden)
        matrix[new, new] = self.numbers.store(np.array([at.constant / target.constant]))[0]
        return matrix

    def mask_state(self, name: str, target: Layout) -> Array:
        """Return the placeholder of the target's hidden states at positions that a parallel head drafts."""
        small = self.small[name].reshape(-1)
        blocks = small.size // target.small_hidden
        state = np.zeros((1, 1, blocks * target.hidden), np.float32)
        state[..., target.columns(blocks)] = small
        new = np.arange(target.first_new, target.hidden)
        signs = np.where(np.arange(len(new)) * 7919 % 13 < 6, -1.0, 1.0)  # noqa: PLR2004 - about half of them
        signs[-1] = 1.0  # the marker
        state[..., new] = signs * target.constant
        return self.numbers.store(state)

    def draft_tokens(self, name: str, rows: int, draft_vocabulary: int) -> Array:
        """Return the target's token id less the draft token's id; new ones are new tokens of the target."""
        offsets = np.full(draft_vocabulary, self.layout.vocabulary - rows, np.int64)
        offsets[:rows] = self.small.get(name, 0)
        return offsets

    def _in_every_copy(self, matrix: Array, columns: Array, small: Array) -> None:
        at, stored = self.layout, self.numbers.store(small)
        for copy in range(at.copies):
            matrix[np.ix_(copy * at.small_hidden + at.stream, columns)] = stored

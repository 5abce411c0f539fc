"""The sizes of published dense models that determine the time of a step. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes. `head_dim` `None`: the small model's."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    head_dim: int | None = None


SHAPES = {
    "tiny": Shape(1024, 8, 16, 4, 1536, 4096),
    "1b": Shape(2048, 16, 32, 8, 8192, 128256),
    "3b": Shape(3072, 28, 48, 16, 8192, 128256),
    "8b": Shape(4096, 32, 64, 8, 14336, 128256),
    "8b-128": Shape(4096, 32, 32, 8, 14336, 128256, head_dim=128),
    "14b": Shape(5120, 40, 80, 16, 17408, 151936),
    "32b": Shape(5120, 64, 80, 16, 27648, 152064),
    "70b": Shape(8192, 80, 128, 16, 28672, 128256),
}
"""`1b` to `8b` and `70b` have Llama 3's sizes, `14b` and `32b` Qwen 3's. The demo pair's attention heads are 64 wide.
For a published model with heads of 128 a shape has twice as many of 64; `8b-128` has 128 like Llama 3. `tiny` is for
tests on a CPU."""

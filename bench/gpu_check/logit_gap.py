"""Whether rounding explains that two replies differ from some token on. Pure.

At temperature 0 an engine takes the likeliest token. The order of additions differs by batch, so two tokens that are
nearly as likely may change places, with speculation or without. The *gap* at the first different token is the log
probability of the likeliest token less that of the other reply's token, by the engine without speculation. A gap within
the bound is rounding; a larger one is a fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOUNDS = {"float32": 0.02, "bfloat16": 0.25}
"""The largest gap, in nats, that rounding explains, by the model's number format.

Triton's attention multiplies float32 with 11 significant bits (TF32): logits of about 16 are good to 16 / 2^11 = 0.008,
and two of them differ by twice that at most. bfloat16 has 8 bits: 16 / 2^8 = 0.06, twice that, and as much again over
the layers. A wrong token for another reason has a larger gap: with the demo pair the median gap between the likeliest
two tokens is above 1.
"""

Likeliest = Sequence[Sequence[float]]
"""Tokens and their log probabilities, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token of a reply that differs from the reply without speculation.

    `gap` is `None` when the probability of the other token is not known; then `is_at_least` is the gap to the last
    known one.
    """

    reply: int
    place: int
    gap: float | None
    is_at_least: float | None = None

    def is_rounding(self, bound: float) -> bool:
        """Whether the gap is known and within `bound`."""
        return self.gap is not None and self.gap <= bound

    def __str__(self) -> str:
        """Return the place and the gap."""
        size = f"{self.gap:.4f}" if self.gap is not None else f"more than {self.is_at_least or 0.0:.4f}"
        return f"reply {self.reply} at token {self.place}: {size}"


def partings(
    replies: Sequence[Sequence[int]], plain: Sequence[Sequence[int]], likeliest: Sequence[Sequence[Likeliest]]
) -> list[Parting]:
    """Return the places at which replies differ from those without speculation, whose `likeliest` tokens are given."""
    places = []
    for number, (reply, other) in enumerate(zip(replies, plain, strict=True)):
        place = next((at for at, pair in enumerate(zip(reply, other, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            if len(reply) != len(other):
                places.append(Parting(number, min(len(reply), len(other)), None))
            continue
        known = _at(likeliest, number, place)
        top = max(known.values(), default=None)
        if top is None:
            places.append(Parting(number, place, None))
        elif reply[place] in known:
            places.append(Parting(number, place, top - known[reply[place]]))
        else:
            places.append(Parting(number, place, None, top - min(known.values())))
    return places


def _at(likeliest: Sequence[Sequence[Likeliest]], reply: int, place: int) -> Mapping[int, float]:
    if reply >= len(likeliest) or place >= len(likeliest[reply]):
        return {}
    return {int(token): value for token, value in likeliest[reply][place]}

"""Which engines have the beginning of a prompt in their KV cache, as far as this gateway's own choices tell.

Points. A prompt's beginnings, each as one hash: after every whole block of `BLOCK_CHARS`, and after every text
(a message, or a part of one), so that the next turn of a conversation finds exactly what the last turn left. Each
hash covers all before it, and the model and vLLM's `cache_salt`, which share nothing. Beginnings shorter than
`LEAST_CHARS` are not worth a preference.

Cost. The first `READ_CHARS` are read in full; a text beyond them counts by its length and its last `TAIL_CHARS`, so
that a conversation under a long system prompt is still told from another at a fixed cost. At most `TEXTS_MAX` texts
are looked at. Tools and token ids do not count. What looks equal and is not costs one prefill, never a wrong answer.

Memory. At most `PREFIXES_MAX` points, the one that was not the longest match for the longest time goes first; at
most `HOLDERS_MAX` engines for each, the latest first. Python's own string hash is keyed anew in every process, so
nobody can make prompts collide, and nothing of a prompt is kept. Pure.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specpilot.gateway.wire.body import RequestFacts

LEAST_CHARS: Final = 1024
"""A shorter common beginning is worth no preference: some 250 tokens, some milliseconds of prefill."""

BLOCK_CHARS: Final = 1024
"""Characters from one point to the next: fewer find longer common beginnings, for a hash and an entry each."""

READ_CHARS: Final = 8192
"""Characters of a prompt that are read in full: the cost of a choice is bounded by them."""

TAIL_CHARS: Final = 64
"""Characters at the end of a text beyond that which tell it from others of its length."""

TEXTS_MAX: Final = 32
"""Texts of a prompt (messages, or parts of one) that are looked at."""

PREFIXES_MAX: Final = 65_536
"""Points that are remembered: some 10 MB, against prompts whose engine is forgotten."""

HOLDERS_MAX: Final = 4
"""Engines that are remembered for a point, the latest first."""

_ITEMS_MAX: Final = 4 * TEXTS_MAX
_RESPONSES: Final = "/v1/responses"


def points_of(facts: RequestFacts) -> list[int]:
    """Return the points of the prompt of `facts`, shortest first."""
    salt = facts.body.get("cache_salt")
    point = hash((facts.model, salt if type(salt) is str else None))
    points: list[int] = []
    left, chars = READ_CHARS, 0
    for text in _texts(facts):
        start, size = 0, len(text)
        while left >= BLOCK_CHARS < size - start:
            point = hash((point, text[start : start + BLOCK_CHARS]))
            points.append(point)
            start += BLOCK_CHARS
            left -= BLOCK_CHARS
        rest = size - start
        if rest <= left:
            point = hash((point, text[start:]))
            left -= rest
        else:
            point = hash((point, size, text[-TAIL_CHARS:]))
        chars += size
        if chars >= LEAST_CHARS:
            points.append(point)
    return points


def _texts(facts: RequestFacts) -> list[str]:
    """Return the prompt's first texts, in order."""
    body = facts.body
    prompt = body.get("messages") or body.get("prompt")
    if prompt is None and facts.path == _RESPONSES:  # elsewhere `input` is nothing that an engine continues
        prompt = body.get("input")
    found: list[str] = []
    left = [prompt, body.get("instructions"), body.get("system")]
    for _ in range(_ITEMS_MAX):
        if not left or len(found) == TEXTS_MAX:
            break
        item = left.pop()
        if type(item) is str:
            found.append(item)
        elif type(item) is dict:
            content = item.get("content")
            left.append(_part(item) if content is None else content)
        elif type(item) is list:
            left += item[_ITEMS_MAX::-1]
    return found


def _part(item: Mapping[str, Any]) -> Any:
    return next((item[name] for name in ("text", "image_url", "url", "output") if item.get(name) is not None), None)


class Prefixes:
    """What was sent where: the bounded memory of one gateway."""

    def __init__(self, limit: int = PREFIXES_MAX) -> None:
        """`limit` is the largest number of points kept."""
        self._limit = limit
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of points kept."""
        return len(self._holders)

    def holders(self, point: int) -> tuple[str, ...]:
        """Return the ids of the engines that should have the prompt up to `point`, the latest first."""
        return self._holders.get(point, ())

    def learn(self, points: Sequence[int], engine_id: str) -> None:
        """A prompt with `points` goes to `engine_id`.

        What the engine was sent before ends the walk: it has everything shorter too.
        """
        known = self._holders
        alone = (engine_id,)
        for point in reversed(points):
            holders = known.get(point)
            if holders is None:
                known[point] = alone
                continue
            known.move_to_end(point)
            if engine_id in holders:
                break
            known[point] = (alone + holders)[:HOLDERS_MAX]
        while len(known) > self._limit:
            known.popitem(last=False)

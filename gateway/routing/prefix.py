"""Finds the engines that should have the beginning of a prompt in their KV cache, by this gateway's own choices. Pure.

Points. Each beginning of a prompt is one hash: after every whole block of `BLOCK_CHARS`, and after every text (a
message, or a part of one), so that the next request of a conversation finds exactly the points of the last one. Each
hash covers everything before it, the model, and vLLM's `cache_salt`, because different models and salts share no cache.
Beginnings shorter than `LEAST_CHARS` are not worth a preference.

Cost. The first `READ_CHARS` are read in full. Of a text beyond them the length and the last `TAIL_CHARS` are hashed, so
that conversations under the same long system prompt still differ, at a fixed cost. At most `TEXTS_MAX` texts are read.
Tools and token ids do not count. Two prompts with equal hashes and different text cost one prefill, never a wrong
answer.

Memory. At most `PREFIXES_MAX` points; the one that was added or matched as the longest least recently is dropped first.
At most `HOLDERS_MAX` engines for each point, the latest first. Python's string hash has a new key in every process, so
a client cannot make prompts collide, and no text of a prompt is kept.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from specpilot.gateway.wire.request_facts import RequestFacts

LEAST_CHARS: Final = 1024
"""Characters of the shortest beginning that is worth a preference: some 250 tokens, some milliseconds of prefill."""

BLOCK_CHARS: Final = 1024
"""Characters between two points. With a smaller number longer common beginnings are found, at the cost of more hashes
and entries."""

READ_CHARS: Final = 8192
"""Characters of a prompt that are read in full. They bound the cost of a choice."""

TAIL_CHARS: Final = 64
"""Characters at the end of a longer text that distinguish it from others of the same length."""

TEXTS_MAX: Final = 32
"""Texts of a prompt (messages, or parts of one) that are read."""

PREFIXES_MAX: Final = 65_536
"""Number of points that are kept, some 10 MB. With a smaller number the engines of more prompts are unknown."""

HOLDERS_MAX: Final = 4
"""Number of engines that are kept for one point, the latest first."""

_ITEMS_MAX: Final = 4 * TEXTS_MAX
_RESPONSES: Final = "/v1/responses"


def points_of(facts: RequestFacts) -> list[int]:
    """Return the points of the prompt of `facts`, shortest first."""
    salt = facts.body.get("cache_salt")
    point = hash((facts.model, salt if type(salt) is str else None))
    points: list[int] = []
    unread, chars = READ_CHARS, 0
    for text in _texts(facts):
        start, size = 0, len(text)
        while unread >= BLOCK_CHARS < size - start:
            point = hash((point, text[start : start + BLOCK_CHARS]))
            points.append(point)
            start += BLOCK_CHARS
            unread -= BLOCK_CHARS
        rest = size - start
        if rest <= unread:
            point = hash((point, text[start:]))
            unread -= rest
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
    if prompt is None and facts.path == _RESPONSES:  # on other routes, engines generate nothing after `input`
        prompt = body.get("input")
    texts: list[str] = []
    stack = [prompt, body.get("instructions"), body.get("system")]
    for _ in range(_ITEMS_MAX):
        if not stack or len(texts) == TEXTS_MAX:
            break
        item = stack.pop()
        if type(item) is str:
            texts.append(item)
        elif type(item) is dict:
            content = item.get("content")
            stack.append(_part(item) if content is None else content)
        elif type(item) is list:
            stack += item[_ITEMS_MAX::-1]  # reversed, so that the first is popped first
    return texts


def _part(item: Mapping[str, Any]) -> Any:
    return next((item[name] for name in ("text", "image_url", "url", "output") if item.get(name) is not None), None)


class Prefixes:
    """The engines of each point: the bounded memory of one gateway."""

    def __init__(self, limit: int = PREFIXES_MAX) -> None:
        """`limit` is the largest number of points."""
        self._limit = limit
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._holders)

    def holders(self, point: int) -> tuple[str, ...]:
        """Return the ids of the engines that should have the prompt up to `point`, the latest first."""
        return self._holders.get(point, ())

    def learn(self, points: Sequence[int], engine_id: str) -> None:
        """Remember that a prompt with `points` goes to `engine_id`.

        Stops at the first point, from the longest on, that the engine already has: it then has all shorter ones too.
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

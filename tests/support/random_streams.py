"""Answers of every shape that HTTP/1.1 and server-sent events allow, at random, each from its own seed."""

import random
from dataclasses import dataclass

from tests.support.scripted_engine import CLOSE, DONE, LAST_CHUNK, Step, chunk, event, usage_event

_LETTERS = 'aé€🙂\u0300\u202e"\\/\t<&usage'


@dataclass(frozen=True)
class RandomStream:
    """What the engine sends, and what of it is body."""

    steps: tuple[Step, ...]
    payload: bytes


def random_stream(seed: int) -> RandomStream:
    """Return the answer number `seed`."""
    rng = random.Random(seed)
    is_events = rng.random() < 0.7
    payload = _events(rng) if is_events else rng.randbytes(rng.choice((0, 1, 30, 900, 5000)))
    kind = "text/event-stream" if is_events else "application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: " + kind.encode() + b"\r\n"
    framing = rng.choice(("chunked", "chunked", "chunked", "length", "open"))
    if rng.random() < 0.1:
        head = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + head
    if framing == "chunked":
        whole = head + b"transfer-encoding: chunked\r\n\r\n" + _chunks(rng, payload)
    elif framing == "length":
        whole = head + b"content-length: %d\r\n\r\n" % len(payload) + payload
    else:
        whole = head + b"\r\n" + payload
    steps: list[Step] = []
    for part in _parts(rng, whole, rng.choice((1, 1, 2, 4, 9))):
        steps += (part, 0)
    return RandomStream((*steps, *([CLOSE] if framing == "open" else ())), payload)


def _events(rng: random.Random) -> bytes:
    frames = [b": hello\n\n"] if rng.random() < 0.2 else []
    for _ in range(rng.randrange(12)):
        text = "".join(rng.choices(_LETTERS, k=rng.choice((0, 1, 4, 200))))
        frames.append((b"id: 7\n" if rng.random() < 0.1 else b"") + event(text))
    if rng.random() < 0.5:
        frames.append(usage_event(rng.randrange(1000), rng.random() * 5))
    whole = b"".join(frames) + DONE
    return whole.replace(b"\n", b"\r\n") if rng.random() < 0.3 else whole


def _chunks(rng: random.Random, payload: bytes) -> bytes:
    parts = _parts(rng, payload, rng.choice((1, 3, 12)))
    extension = b";a=b" if rng.random() < 0.1 else b""
    framed = b"".join(chunk(part).replace(b"\r\n", extension + b"\r\n", 1) for part in parts if part)
    return framed + (b"0\r\nx-trailer: 1\r\n\r\n" if rng.random() < 0.1 else LAST_CHUNK)


def _parts(rng: random.Random, data: bytes, count: int) -> list[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(count - 1))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.framing import ChunkedFramer, Framer, FramingError, LengthFramer, OpenFramer, parse_head

OK = b"HTTP/1.1 200 OK\r\n"


def follow(framer: Framer, data: bytes, cuts: list[int]) -> tuple[bytes, int]:
    """The payload, and how many of the bytes belong to the body."""
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    payload, taken = b"", 0
    for start, end in pairwise(at):
        used = framer.feed(data[start:end])
        payload += framer.payload
        taken += used
        if used < end - start:
            assert framer.is_done
            break
    return payload, taken


def feed_all(framer: ChunkedFramer, parts: list[bytes]) -> None:
    for part in parts:
        framer.feed(part)
        assert not framer.is_done


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
cut_points = st.lists(st.integers(0, 5000), max_size=40)


@given(
    parts=chunks,
    cuts=cut_points,
    extension=st.sampled_from([b"", b";a=b", b"; x", b"  "]),
    trailers=st.sampled_from([b"", b"x-t: 1\r\n", b"a: b\r\nc: d\r\n"]),
    rest=st.binary(max_size=10),
)
def test_a_chunked_body_ends_where_it_ends(
    parts: list[bytes], cuts: list[int], extension: bytes, trailers: bytes, rest: bytes
) -> None:
    body = b"".join(b"%X%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n" + trailers + b"\r\n"
    framer = ChunkedFramer()
    payload, taken = follow(framer, body + rest, cuts)
    assert framer.is_done
    assert payload == b"".join(parts)
    assert taken == len(body)


@pytest.mark.parametrize(
    "bad",
    [
        b"x\r\n", b"\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"1_0\r\n", b" 1\r\n", b"fffffffffffff\r\n", b"1\n",
        b"1\r\nab\r\n", b"1\r\na\n\n", b"1\r\na\rx", b"0\r\nno header\r\n\r\n", b"0\r\n: x\r\n\r\n", b"1;\x00\r\n",
        b"1 ;a=b\r\n", b"1" * 5000, b"0\r\nx: " + b"y" * 20_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_split", [False, True])
def test_bad_chunks_are_refused(bad: bytes, is_split: bool) -> None:
    parts = [bytes([byte]) for byte in bad + b"\r\n"] if is_split else [bad + b"\r\n"]
    with pytest.raises(FramingError):
        feed_all(ChunkedFramer(), parts)


@given(st.binary(max_size=60), st.integers(0, 60), cut_points)
def test_a_length_is_kept(data: bytes, length: int, cuts: list[int]) -> None:
    framer = LengthFramer(length)
    payload, taken = follow(framer, data, cuts)
    assert payload == data[:length]
    assert taken == min(len(data), length)
    assert framer.is_done == (len(data) >= length)


def test_an_open_body_is_never_done() -> None:
    framer = OpenFramer()
    assert framer.feed(b"abc") == 3
    assert framer.payload == b"abc"
    assert not framer.is_done


def test_a_head() -> None:
    head = parse_head(
        OK + b"Content-Type:  Text/Event-Stream \r\nTransfer-Encoding: chunked\r\nX-A: b: c\r\nX-a: \r\n"
        b"Connection: X-Hop\r\nx-hop: 1\r\nKeep-Alive: timeout=5\r\n"
    )
    assert head.status == 200
    assert head.is_chunked
    assert head.length is None
    assert head.is_kept_alive
    assert head.content_type == b"text/event-stream"
    assert head.headers == ((b"content-type", b"Text/Event-Stream"), (b"x-a", b"b: c"), (b"x-a", b""))
    assert isinstance(head.framer(), ChunkedFramer)


@pytest.mark.parametrize(
    ("fields", "is_kept_alive"),
    [(b"", True), (b"Connection: close\r\n", False), (b"connection: keep-alive, Close\r\n", False)],
)
def test_keep_alive(fields: bytes, is_kept_alive: bool) -> None:
    assert parse_head(OK + fields).is_kept_alive == is_kept_alive
    assert not parse_head(b"HTTP/1.0 200 OK\r\n").is_kept_alive
    assert parse_head(b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n").is_kept_alive


def test_how_a_body_ends() -> None:
    assert isinstance(parse_head(OK + b"content-length: 5\r\n").framer(), LengthFramer)
    assert parse_head(OK + b"content-length: 5\r\ncontent-length: 5\r\n").length == 5
    assert isinstance(parse_head(OK).framer(), OpenFramer)
    assert parse_head(b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n").framer().is_done
    assert parse_head(b"HTTP/1.1 304\r\ncontent-length: 7\r\n").framer().is_done


@pytest.mark.parametrize(
    "head",
    [
        b"", b"HTTP/1.1\r\n", b"HTTP/2 200 OK\r\n", b"HTTP/1.1 20 OK\r\n", b"HTTP/1.1 999 X\r\n",
        b"http/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\n", b"HTTP/1.1 200 O\x00K\r\n", OK + b"no colon\r\n", OK + b"a b: c\r\n", OK + b": c\r\n",
        OK + b"a: b\r\n c\r\n", OK + b"a: b\x00\r\n", OK + b"a : b\r\n", OK + b"content-length: \r\n",
        OK + b"content-length: -1\r\n", OK + b"content-length: 1, 1\r\n", OK + b"content-length: 1e3\r\n",
        OK + b"content-length: 9999999999999999\r\n", OK + b"content-length: 1\r\ncontent-length: 2\r\n",
        OK + b"content-length: 1\r\ncontent-length: 01\r\n",
        OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n", OK + b"transfer-encoding: gzip, chunked\r\n",
        OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", OK + b"transfer-encoding: identity\r\n",
        b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n",
        OK + "content-length: \u00b2\r\n".encode("latin-1"),
        OK[:-2], OK + b"a: b", OK + b"\r\n", OK + b"a: b\n\r\n", OK + b"a: b\rc\nd: e\r\n",
        OK + b"date\x80: b\r\n", OK + b"a: \x7f\r\n", OK + b"date\r\n",
    ],
)  # fmt: skip
def test_a_bad_head_is_refused(head: bytes) -> None:
    with pytest.raises(FramingError):
        parse_head(head)


HEAD = re.compile(
    rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [^\x00-\x08\x0a-\x1f\x7f]*)?\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*"
)
PIECES = (b"a", b"Date", b":", b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x00", b"\x7f", b"\x80", b"(", b"a: b\r\n")


@given(st.sampled_from([OK, b"HTTP/1.1 200", b"HTTP/1.0 404 "]), st.lists(st.sampled_from(PIECES), max_size=12))
def test_a_head_is_read_if_the_grammar_has_it(begin: bytes, pieces: list[bytes]) -> None:
    text = begin + b"".join(pieces)
    is_read = True
    try:
        parse_head(text)
    except FramingError:
        is_read = False
    assert is_read == (HEAD.fullmatch(text) is not None)


def test_a_long_chunk_size_is_a_number_too() -> None:
    framer = ChunkedFramer()
    assert framer.feed(b"00000000000a\r\n0123456789\r\n0\r\n\r\n") == 31
    assert framer.payload == b"0123456789"
    assert framer.is_done

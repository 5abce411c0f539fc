"""Forms as they arrive: fields found, files passed over, however the bytes are cut."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.errors import BodyTooComplexError, InvalidFormError
from specpilot.gateway.wire.form import FIELD_BYTES, PART_HEAD_BYTES, PARTS_MAX, FormOutline

LINES = b'content-type: multipart/form-data; boundary="xYz"\r\n'


def part(name: str, value: bytes, extra: str = "") -> bytes:
    return b'--xYz\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (
        name.encode(),
        extra.encode(),
        value,
    )


def read(parts: Iterable[bytes], lines: bytes = LINES) -> Any:
    outline = FormOutline(lines)
    for item in parts:
        outline.feed(item)
    return json.loads(outline.finish())


FORM = (
    part("file", b"\x00\r\n--xY\r\nmodel\r\n--" * 50, '; filename="a.wav"\r\nContent-Type: audio/wav')
    + part("model", b"whisper")
    + part("prompt", b"")
    + part("stream", b"True")
    + b"--xYz--\r\n"
)


@given(st.lists(st.integers(0, len(FORM)), max_size=12))
def test_fields_are_found_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(FORM)]
    pieces = [FORM[start:end] for start, end in pairwise(at)]
    assert read(pieces) == {"model": "whisper", "prompt": "", "stream": "True"}


def test_a_file_is_not_held() -> None:
    outline = FormOutline(LINES)
    outline.feed(part("file", b"", '; filename="a"')[:-2])
    for _ in range(64):
        outline.feed(b"a" * 65_536)
        assert len(outline._rest) < 100
    outline.feed(b"\r\n" + part("model", b"m" * 2 * FIELD_BYTES) + b"--xYz--\r\n")
    assert len(json.loads(outline.finish())["model"]) == FIELD_BYTES


@pytest.mark.parametrize("size", [1, 7, 64])
def test_what_is_copied_of_small_pieces_is_bounded_by_the_longest_head(size: int) -> None:
    """Each piece is joined to what is kept of those before it."""
    boundary = b"-" * 68 + b"y-"
    outline = FormOutline(b"content-type: multipart/form-data; boundary=%b\r\n" % boundary)
    file = b'--%b\r\nContent-Disposition: form-data; name="f"; filename="a"\r\nx: %b\r\n\r\n%b\r\n' % (
        boundary,
        b"x" * (PART_HEAD_BYTES - 100),
        (b"\r\n--" + boundary[:-1]) * 200,
    )
    body = file * 3 + part("model", b"m").replace(b"--xYz", b"--" + boundary) + b"--" + boundary + b"--\r\n"
    kept = []
    for at in range(0, len(body), size):
        kept.append(len(outline._rest) + len(outline._value))
        outline.feed(body[at : at + size])
    assert max(kept) < PART_HEAD_BYTES + size
    heads = 3 * PART_HEAD_BYTES // size * PART_HEAD_BYTES
    assert sum(kept) < heads + len(kept) * (len(boundary) + 8)
    assert json.loads(outline.finish()) == {"model": "m"}


def test_the_boundary_is_searched_for_in_time_that_goes_by_the_bytes_alone() -> None:
    """It is the client's choice: `bytes.find` takes up to the product of both lengths."""
    assert FormOutline(LINES)._search.pattern == rb"\-\-xYz"


@pytest.mark.parametrize("name", ["model", "stream", "vllm_xargs"])
def test_a_field_that_decides_is_stated_once(name: str) -> None:
    """Some servers take the first of two, some the last."""
    with pytest.raises(InvalidFormError, match="twice"):
        read([part(name, b"1") + part("file", b"x", '; filename="a"') + part(name, b"2") + b"--xYz--"])
    again = part("timestamp_granularities[]", b"word") + part("timestamp_granularities[]", b"segment")
    assert read([again + b"--xYz--"]) == {"timestamp_granularities[]": "segment"}


@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("fields", [b"", part("model", b"")])
def test_a_model_is_named_in_a_form_that_names_none(before: bytes, fields: bytes) -> None:
    body = before + part("prompt", b"a") + fields + part("file", b"x" * 9, '; filename="model"') + b"--xYz--\r\n"
    for cut in range(len(body)):
        outline = FormOutline(LINES)
        outline.feed(body[:cut])
        outline.feed(body[cut:])
        start, end, text = outline.model_edit("grüße")
        assert read([body[:start] + text + body[end:]]) == {"model": "grüße", "prompt": "a"}


HIDDEN = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (part("model", b"big") + part("file", b"x\r\n--xYzX" + HIDDEN, '; filename="a"') + b"--xYz--", "only begins"),
        (part("model", b"big") + part("file", b"x\r\n--xYz " + HIDDEN, '; filename="a"') + b"--xYz--", "only begins"),
        (part("model", b"big") + b"--xYz-X" + HIDDEN + b"--xYz--", "only begins"),
        (part("model", b"small") + b"--xYz--X" + HIDDEN.replace(b"small", b"big") + b"--xYz--", "goes on"),
        (part("model", b"small") + b"--xYz--\r\n--xYz" + HIDDEN.replace(b"small", b"big") + b"--xYz--", "goes on"),
        (b"--xYz\n" + HIDDEN.replace(b"\r", b"") + part("model", b"big") + b"--xYz--", "only begins"),
        (b"x\n--xYz\n" + HIDDEN.replace(b"\r", b"") + part("model", b"big") + b"--xYz--", "within a line"),
        (part("prompt", b"--xYz" + HIDDEN) + part("model", b"big") + b"--xYz--", "within a line"),
        (part("prompt", b"x\n--xYz" + HIDDEN) + part("model", b"big") + b"--xYz--", "within a line"),
        (b"preamble\r\n" + part("model", b"big") + b"--xYz--", "does not begin"),
    ],
)
def test_a_part_that_only_some_servers_see_is_refused(body: bytes, said: str) -> None:
    for cut in range(len(body)):
        with pytest.raises(InvalidFormError, match=said):
            read([body[:cut], body[cut:]])


def test_a_field_in_a_transfer_encoding_is_refused() -> None:
    for how in ("base64", "quoted-printable", ""):
        with pytest.raises(InvalidFormError, match="transfer encoding"):
            read([part("model", b"c21hbGw=", f"\r\nContent-Transfer-Encoding: {how}") + b"--xYz--"])
    plain = part("model", b"small", "\r\nContent-Type: text/plain\r\nContent-Transfer-Encoding: 8bit")
    assert read([plain + b"--xYz--"])["model"] == "small"


def test_a_form_names_no_class() -> None:
    assert read([part("vllm_xargs", b'{"k_max": 2}') + b"--xYz--"])["vllm_xargs"] == '{"k_max": 2}'
    for text in (b'{"traffic_class": "code"}', b'{"\\u0074raffic_class": 1, "a": {}}'):
        with pytest.raises(InvalidFormError, match="the gateway sets it"):
            read([part("vllm_xargs", text) + b"--xYz--"])
    for text in (b'{"traffic_class": NaN}', b'{"a": "%s"' % (b"x" * 2 * FIELD_BYTES)):
        with pytest.raises(InvalidFormError, match="not JSON"):
            read([part("vllm_xargs", text) + b"--xYz--"])


FIELDS = [
    b'form-data; name="model"',
    b"form-data; name=model",
    b"Form-Data;name=model",
    b"form-data ; Name=model ;",
    b'form-data; size=7; name="model"',
    b'form-data; x="a; name=\\"b\\""; name=model',
]
FILES = [
    b'form-data; name="file"; filename="a.wav"',
    b"form-data; name=file; filename=a.wav",
    b"form-data; filename=a.wav; name=file",
    b"form-data; filename*=UTF-8''gr%C3%BC%C3%9Fe.wav; name=file",
    b"form-data; name=file; filename=a.wav; filename*=utf-8''a.wav",  # as .NET has it
    b'form-data; name="file"; filename="a\\"b; name=\\"model\\".wav"',
    'form-data; name="file"; filename="größe.wav"'.encode(),
    b'form-data; name="file"; filename=""',
]
TYPES = [
    b"multipart/form-data; boundary=xYz",
    b'multipart/form-data; boundary="xYz"',
    b'Multipart/Form-Data;BOUNDARY="xYz";charset=utf-8',
    b'multipart/form-data; charset="UTF-8"; boundary=xYz',
    b"multipart/form-data; profile=a/b; boundary=xYz ;",
]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("field", FIELDS)
def test_parameters_may_be_tokens_or_quoted_and_in_any_order(field: bytes, file: bytes, kind: bytes) -> None:
    body = b"--xYz\r\nContent-Type: audio/wav\r\nContent-Disposition: %b\r\n\r\nRIFF\r\n" % file
    body += b"--xYz\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Disposition: %b\r\n\r\ntiny\r\n" % field
    assert read([body + b"--xYz--\r\n"], b"content-type: %b\r\n" % kind) == {"model": "tiny"}


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"content-type: multipart/form-data; boundary=xYz; boundary=abc\r\n",
        b'content-type: multipart/form-data; boundary="xYz\r\n',
        b'content-type: multipart/form-data; boundary="x\\Yz"\r\n',
        b'content-type: multipart/form-data; boundary="xYz "\r\n',
        b'content-type: multipart/form-data; boundary=""\r\n',
        b"content-type: application/json\r\n",
        b"content-type: multipart/form-data\r\n",
        b"content-type: multipart/mixed; boundary=xYz\r\n",
        b"content-type: multipart/form-data; charset=utf-16; boundary=xYz\r\n",
        b"content-type: multipart/form-data; boundary=a\r\ncontent-type: multipart/form-data; boundary=b\r\n",
        b"content-type: multipart/form-data; boundary=%s\r\n" % (b"x" * 71),
    ],
)
def test_another_content_type_is_refused(lines: bytes) -> None:
    with pytest.raises(InvalidFormError, match="multipart/form-data with a boundary"):
        FormOutline(lines)


@pytest.mark.parametrize(
    "disposition",
    [
        b"",
        b"Content-Disposition: attachment\r\n",
        b"Content-Disposition: form-data; name=model name=x\r\n",
        b'Content-Disposition: form-data; name="model\r\n',
        b"Content-Disposition: form-data; name=model; name=other\r\n",
        b'Content-Disposition: form-data; name="a"b\r\n',
        b"Content-Disposition: form-data; name=\r\n",
        b"Content-Disposition: form-data; filename=a; name*=utf-8''model\r\n",
        b'Content-Disposition: form-data; name="mo\\del"\r\n',
        b"Content-Disposition: form-data; name=\"a\"; name*=utf-8''model\r\n",
        b'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="model"\r\n',
    ],
)
def test_what_another_parser_may_read_otherwise_is_refused(disposition: bytes) -> None:
    with pytest.raises(InvalidFormError, match="no name"):
        read([b"--xYz\r\n" + disposition + b"\r\nm\r\n--xYz--"])


def test_bounds() -> None:
    with pytest.raises(BodyTooComplexError, match=str(PARTS_MAX)):
        read([part("a", b"b") * (PARTS_MAX + 1)])
    with pytest.raises(InvalidFormError, match=str(PART_HEAD_BYTES)):
        read([b"--xYz\r\n" + b"x: " + b"y" * PART_HEAD_BYTES])
    with pytest.raises(InvalidFormError, match="UTF-8"):
        read([part("model", b"caf\xe9") + b"--xYz--"])
    with pytest.raises(InvalidFormError, match="not whole"):
        read([part("model", b"m")])

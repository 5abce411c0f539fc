import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.wire.errors import EngineUnavailableError, InvalidApiKeyError, MethodNotAllowedError
from specpilot.gateway.wire.framing import parse_head
from specpilot.gateway.wire.heads import client_head, decision_lines, error_reply, read_request_head


def test_a_request_head() -> None:
    head = read_request_head(
        [
            (b"host", b"x"),
            (b"authorization", b"Bearer  sk "),
            (b"x-traffic-class", b" code "),
            (b"x-request-id", b"r-1"),
            (b"content-length", b"12"),
            (b"connection", b"close, X-Hop"),
            (b"x-hop", b"1"),
            (b"accept", b"*/*"),
            (b"accept", b"text/event-stream"),
            (b"expect", b"100-Continue"),
        ]
    )
    assert head.forwarded == b"accept: */*\r\naccept: text/event-stream\r\n"
    assert head.api_key == b"sk"
    assert head.traffic_class == "code"
    assert head.request_id == b"r-1"
    assert head.length == 12
    assert head.is_expecting
    assert not head.is_chunked


@pytest.mark.parametrize("blanks", [b"", b" ", b"\t", b"  "])
def test_blanks_behind_a_value_are_no_part_of_it(blanks: bytes) -> None:
    assert read_request_head([(b"host", b"x"), (b"content-length", b"60" + blanks)]).length == 60
    assert read_request_head([(b"host", b"x"), (b"transfer-encoding", b"chunked" + blanks)]).is_chunked


@given(st.binary(max_size=200))
def test_a_request_id_goes_on_only_if_it_is_plain(value: bytes) -> None:
    found = read_request_head([(b"x-request-id", value)]).request_id
    assert not found or (
        found == value.strip(b" \t") and 0 < len(found) <= 128 and all(33 <= byte <= 126 for byte in found)
    )


def test_a_client_head() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nx-request-id: engine\r\ncontent-length: 2\r\n")
    said = client_head(head, b"x-request-id: own\r\n", is_chunked=False, length=2, keep_alive=True)
    assert said == b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nx-request-id: own\r\ncontent-length: 2\r\n\r\n"
    closing = client_head(head, b"", is_chunked=True, length=None, keep_alive=False)
    assert closing.endswith(b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")


def test_an_unknown_status_has_a_head_too() -> None:
    head = parse_head(b"HTTP/1.1 299 Odd\r\n")
    assert client_head(head, b"", is_chunked=False, length=None, keep_alive=True) == b"HTTP/1.1 299 \r\n\r\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (EngineUnavailableError("x", retry_after_s=0.2), b"retry-after: 1\r\n"),
        (EngineUnavailableError("x", retry_after_s=7.6), b"retry-after: 8\r\n"),
        (MethodNotAllowedError("x"), b"allow: POST\r\n"),
        (InvalidApiKeyError("x"), b"www-authenticate: Bearer\r\n"),
    ],
)
def test_error_replies_say_what_to_do(error: EngineUnavailableError, line: bytes) -> None:
    assert line in error_reply(error, b"", keep_alive=True)
    assert error_reply(error, b"", keep_alive=False, is_head=True).endswith(b"connection: close\r\n\r\n")


def test_the_decisions_about_a_request_are_header_lines_for_its_engine() -> None:
    assert decision_lines("code", 0, None) == b"x-traffic-class: code\r\n"
    lines = b"x-traffic-class: code\r\nx-specpilot-k-max: 0\r\nx-vllm-priority: -7\r\n"
    assert decision_lines("code", -7, 0) == lines
    with pytest.raises(ValueError, match="not a class name"):
        decision_lines("x\r\ny: z", 0, None)

import pytest

from specpilot.gateway.wire.heads import HEAD_BYTES, HEADERS_MAX, head_fault, read_request_head, without_upgrade
from specpilot.gateway.wire.request_target import ROUTES, origin_form, read_route
from specpilot.gateway.wire.routes import PROXIED, RESPONSE, STORED


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://host/v1/models?x=1", b"/v1/models?x=1"),
        (b"HTTPS://host:1", b"/"),
        (b"http://host?x=1", b"/?x=1"),
        (b"*", b"/*"),
        (b"host:443", b"/host:443"),
    ],
)
def test_a_target_in_absolute_form_is_its_path(target: bytes, path: bytes) -> None:
    assert origin_form(target) == path


def test_a_query_does_not_change_the_route() -> None:
    head = read_request_head([])
    for target, path in ROUTES.items():
        assert read_route(target + b"?x=1", head) == path
    assert set(ROUTES.values()) == PROXIED - STORED
    assert head.target == ""


def test_the_target_of_a_stored_response_goes_to_the_engine() -> None:
    head = read_request_head([])
    assert read_route(b"/v1/responses/resp_1?stream=true", head) == RESPONSE
    assert head.target == "/v1/responses/resp_1?stream=true"


@pytest.mark.parametrize("target", [b"/v1/responses/", b"/v1/responses/a/b", b"/health", b"/"])
def test_another_target_is_not_relayed(target: bytes) -> None:
    head = read_request_head([])
    assert read_route(target, head) is None
    assert head.target == ""


@pytest.mark.parametrize(
    ("version", "target", "headers", "status"),
    [
        ("1.1", b"/", [(b"x", b"y")] * (HEADERS_MAX - 1), None),
        ("1.0", b"/", [(b"x", b"y" * (HEAD_BYTES - 2))], None),
        ("1.1", b"/", [(b"x", b"y")] * HEADERS_MAX, 431),
        ("1.1", b"/", [(b"x", b"y" * (HEAD_BYTES - 1))], 431),
        ("1.1", b"/" * (HEAD_BYTES + 1), [], 431),
        ("2.0", b"/", [], 400),
    ],
)
def test_a_head_has_bounds(version: str, target: bytes, headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    fault = head_fault(version, target, headers)
    assert (None if fault is None else fault.status) == status


def test_a_head_without_its_upgrade_has_every_other_header() -> None:
    headers = [(b"host", b"g"), (b"upgrade", b"h2c"), (b"connection", b"upgrade")]
    assert without_upgrade(b"GET", b"/score", "1.1", headers) == (
        b"GET /score HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\n\r\n"
    )

import pytest

from specpilot.policy.this_machine import why_foreign

HOST = {"host": "localhost:8081"}


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.6", "::1", "::ffff:127.0.0.1", "localhost"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8081", "[::1]:8081", "[::ffff:127.0.0.1]:8081"])
def test_a_program_here_is_none_from_elsewhere(peer: str, host: str) -> None:
    assert why_foreign(peer, {"host": host}, "1.1") is None


@pytest.mark.parametrize("peer", ["", "unknown", "10.0.0.7", "::ffff:10.0.0.7", "example.org", "127.0.0.1:80"])
def test_another_address_is_named(peer: str) -> None:
    assert why_foreign(peer, HOST, "1.1") == f"{peer or 'the caller'} is not on this machine"


@pytest.mark.parametrize(
    ("headers", "http_version", "why"),
    [
        ({"x-forwarded-for": "127.0.0.1"}, "1.1", "the call was proxied (x-forwarded-for)"),
        ({"forwarded": "for=x", "via": "1.1 p"}, "1.1", "the call was proxied (forwarded, via)"),
        ({}, "1.0", "the call was proxied (HTTP/1.0)"),
        ({"host": "evil.example"}, "1.1", "the Host of the call is no local name"),
        ({"host": ""}, "1.1", "the Host of the call is no local name"),
        ({"host": "[x"}, "1.1", "the headers of the call cannot be read"),
        ({"origin": "http://evil.example"}, "1.1", "a page of another site calls"),
        ({"referer": "http://localhost/x"}, "1.1", "a page of another site calls"),
        ({"sec-fetch-site": "cross-site"}, "1.1", "a page of another site calls"),
    ],
)
def test_proxies_and_pages_show_by_their_headers(headers: dict[str, str], http_version: str, why: str) -> None:
    assert why_foreign("127.0.0.1", HOST | headers, http_version) == why


def test_a_page_of_its_own_is_let_in() -> None:
    own = {"origin": "http://localhost:8081", "sec-fetch-site": "same-origin", "referer": "http://localhost:8081/a"}
    assert why_foreign("127.0.0.1", HOST | own, "1.1") is None
    padded = {name: f" {value}\t" for name, value in (HOST | own).items()}
    assert why_foreign("127.0.0.1", padded, "1.1") is None

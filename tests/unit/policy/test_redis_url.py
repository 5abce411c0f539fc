from pathlib import Path

import pytest

from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.redis_url import OPTIONS, RedisAddress, Topology, parse

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "redis.md").read_text()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://r", RedisAddress(Topology.SERVER, (("r", 6379),), False)),
        ("redis://[::1]:7/2", RedisAddress(Topology.SERVER, (("::1", 7),), False, db=2)),
        ("redis://[fe80::1%25eth0]", RedisAddress(Topology.SERVER, (("fe80::1%eth0", 6379),), False)),
        ("redis://r/1?db=3", RedisAddress(Topology.SERVER, (("r", 6379),), False, db=3)),
        ("rediss://me:a%40b@r:1", RedisAddress(Topology.SERVER, (("r", 1),), True, username="me", password="a@b")),
        ("redis://:hush@r", RedisAddress(Topology.SERVER, (("r", 6379),), False, password="hush")),
        ("unix:///run/r.sock?db=1", RedisAddress(Topology.SERVER, (), False, socket_path="/run/r.sock", db=1)),
        (
            "rediss+sentinel://u:p@a,b:9/state/4?sentinel_password=s&ssl_ca_certs=/ca.pem",
            RedisAddress(
                Topology.SENTINEL,
                (("a", 26379), ("b", 9)),
                True,
                service="state",
                db=4,
                username="u",
                password="p",
                options={"sentinel_password": "s", "ssl_ca_certs": "/ca.pem"},
            ),
        ),
        ("redis+cluster://a,b:7", RedisAddress(Topology.CLUSTER, (("a", 6379), ("b", 7)), False)),
    ],
)
def test_a_url_states_where_redis_is_and_how_to_reach_it(url: str, address: RedisAddress) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("r:6379", "redis://127.0.0.1:6379/0"),
        ("http://r", "'http://' is none of"),
        ("redis://", "a host has no name"),
        ("redis://r:0", "the port must be from 1"),
        ("redis://r:port", "the port must be from 1"),
        ("redis://r:65536", "the port must be from 1"),
        ("redis://r/x", "db must be a number"),
        ("redis://r/1/2", "/2 is too much"),
        ("redis://r 1", "space"),
        ("redis://a,b", "redis+sentinel:// or redis+cluster://"),
        ("redis+sentinel://a,b", "it names no service"),
        ("redis+cluster://a/1", "a cluster has database 0 only"),
        ("unix://run/r.sock", "must begin with /"),
        ("redis://r?sssl=1", "there is no option 'sssl'"),
        ("redis://r?ssl_ca_certs=/ca.pem", "ssl_ca_certs needs TLS; write rediss"),
        ("rediss://r?sentinel_password=x", "sentinel_password needs redis+sentinel://"),
        ("rediss://r?ssl_cert_reqs=maybe", "ssl_cert_reqs must be required or none"),
        ("rediss://r?ssl_check_hostname=1", "ssl_check_hostname must be true or false"),
    ],
)
def test_a_faulty_url_is_rejected_with_its_faults_and_without_its_password(url: str, said: str) -> None:
    scheme, mark, rest = url.partition("://")
    for text in {url, f"{scheme}{mark}me:hush@{rest}" if mark and scheme != "unix" else url}:
        with pytest.raises(InvalidDocumentError) as caught:
            parse(text)
        assert said in str(caught.value)
        assert "hush" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    assert "hush" not in repr(parse("redis+sentinel://:hush@a/s?sentinel_password=hush"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_documented(option: str) -> None:
    assert f"| `{option}` | {OPTIONS[option]} |" in PAGE

"""A name followed by a resolver that is handed in, and by the system's own."""

import logging
import threading
from collections.abc import Collection

import pytest

from specpilot.gateway.engines.dns import Resolver, lookup
from tests.support.patience import PATIENCE_S


class Records:
    """Stands in for DNS: the addresses that it answers, and the names that were asked."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Collection[str] | Exception = addresses
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> Collection[str]:
        self.asked.append((host, port))
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses


def ignore(name: str, urls: tuple[str, ...]) -> None:
    del name, urls


def resolver(records: Records, name: str = "dns+http://vllm.example:8000") -> Resolver:
    return Resolver(name, records, ignore, 5.0)


@pytest.mark.parametrize(
    ("name", "asked", "urls"),
    [
        ("dns+http://h:8000", ("h", 8000), ("http://10.0.0.1:8000", "http://[fd00::1]:8000")),
        ("dns+http://h/base", ("h", 80), ("http://10.0.0.1:80/base", "http://[fd00::1]:80/base")),
        ("dns+https://h", ("h", 443), ("https://10.0.0.1:443", "https://[fd00::1]:443")),
    ],
)
def test_every_address_is_an_engine(name: str, asked: tuple[str, int], urls: tuple[str, ...]) -> None:
    records = Records("fd00::1", "10.0.0.1")
    assert resolver(records, name).resolve() == urls
    assert records.asked == [asked]


@pytest.mark.parametrize("failure", [OSError("no such host"), TimeoutError(), UnicodeError("label too long"), ()])
def test_a_failure_keeps_the_last_answer_and_is_said_once(
    failure: Collection[str] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records("10.0.0.1")
    found = resolver(records)
    before = found.resolve()
    records.addresses = failure
    with caplog.at_level(logging.WARNING):
        assert [found.resolve() for _ in range(3)] == [before] * 3
        assert len(caplog.records) == 1
        records.addresses = ("10.0.0.2",)
        assert found.resolve() == ("http://10.0.0.2:8000",)
    assert len(caplog.records) == 2


def test_a_name_that_never_resolved_has_no_engines() -> None:
    assert resolver(Records()).resolve() == ()


def test_the_systems_resolver_is_asked_by_default() -> None:
    assert lookup("localhost", 8000) & {"127.0.0.1", "::1"}
    assert lookup("127.0.0.1", 8000) == {"127.0.0.1"}


def test_a_closed_loop_ends_the_thread() -> None:
    called = threading.Event()

    def closed(name: str, urls: tuple[str, ...]) -> None:
        called.set()
        raise RuntimeError("the loop is closed")

    found = Resolver("dns+http://h:1", Records("10.0.0.1"), closed, 3600.0)
    found.start()
    assert called.wait(PATIENCE_S)
    found._thread.join(PATIENCE_S)
    assert not found._thread.is_alive()

"""Engines join, drain and leave, whichever of the three sides names them."""

from dataclasses import replace
from typing import Any

import pytest

from specpilot.gateway.engines.fleet import Engine, Fleet
from specpilot.gateway.routing.chooser import Affinity, Balance, Chooser
from specpilot.policy.records import EngineRecord
from tests.support.candidates import facts
from tests.support.engine_records import record

NAME = "dns+https://vllm.example:8443/base"


def fleet_of(*urls: str) -> Fleet:
    return Fleet(urls, Chooser(Balance.LEAST, Affinity.BOTH, lambda: 0), 4.0, None)


def picked(fleet: Fleet, times: int = 8) -> set[str]:
    found = [fleet.pick(facts(), None, 0.0) for _ in range(times)]
    return {engine.engine_id for engine in found if engine is not None}


def serve(*engines: Engine) -> None:
    for engine in engines:
        engine.cards = ({"id": "tiny"},)


def ranks(*changes: dict[str, Any]) -> tuple[EngineRecord, ...]:
    """Records of the data-parallel ranks of the server at a:1, each with its changes."""
    return tuple(
        replace(record(f"a-dp{rank}", "http://a:1"), rank=rank, **changed) for rank, changed in enumerate(changes)
    )


def test_data_parallel_ranks_of_one_address_are_one_engine_with_the_room_of_all() -> None:
    fleet = fleet_of("http://a:1")
    fleet.apply((*ranks({}, {}, {}), record("b", "http://b:1")))
    server, single = fleet.engines["a"], fleet.engines["b"]
    assert (set(fleet.engines), server.ranks, single.ranks) == ({"a", "b"}, 3, 1)
    serve(server, single)
    server.outstanding_tokens, single.outstanding_tokens = 3000, 1001
    assert (server.work_tokens, single.work_tokens) == (1000.0, 1001.0)
    assert picked(fleet) == {"a"}
    fleet.apply((*ranks({}, {})[1:], record("b", "http://b:1")))  # the first rank's record is lost
    assert (fleet.engines["a"], server.ranks) == (server, 1)


@pytest.mark.parametrize(
    ("changes", "is_draining", "is_stalled", "limit"),
    [
        (({}, {}), False, False, None),
        (({}, {"draining": True}), True, False, None),
        (({"stalled": True}, {}), False, True, None),
        (({"running_limit": 8}, {"running_limit": 5}), False, False, 10),
        (({"running_limit": 8}, {}), False, False, 16),
    ],
)
def test_a_server_is_what_its_ranks_say_together(
    changes: tuple[dict[str, Any], ...], is_draining: bool, is_stalled: bool, limit: int | None
) -> None:
    fleet = fleet_of()
    fleet.apply(ranks(*changes))
    server = fleet.engines["a"]
    assert (server.is_draining, server.is_stalled, server.running_limit) == (is_draining, is_stalled, limit)
    fleet.apply((record("a", "http://a:1"),))
    assert (server.is_draining, server.is_stalled, server.running_limit) == (False, False, None)


def test_a_registered_engine_joins_drains_and_leaves() -> None:
    fleet = fleet_of()
    assert picked(fleet) == set()
    first, second = record("a", "http://a:1"), record("b", "http://b:1/")
    fleet.apply((first, second))
    serve(*fleet.engines.values())
    assert picked(fleet) == {"a", "b"}
    fleet.apply((record("a", "http://a:1", draining=True), second))
    assert picked(fleet) == {"b"}
    assert fleet.is_serving
    fleet.apply((record("a", "http://a:1", draining=True),))
    assert picked(fleet) == set()
    assert not fleet.is_serving
    fleet.apply((first,))
    assert picked(fleet) == {"a"}
    fleet.apply(())
    assert fleet.engines == fleet.by_model == {}


def test_what_stays_keeps_all_that_is_known_of_it() -> None:
    fleet = fleet_of("http://s:1")
    fleet.apply((record("a", "http://a:1"),))
    fleet.resolve(NAME, ("https://10.0.0.1:8443/base",))
    before = {**fleet.engines}
    fleet.apply((record("a", "http://a:1"), record("b", "http://b:1")))
    fleet.resolve(NAME, ("https://10.0.0.1:8443/base", "https://10.0.0.2:8443/base"))
    assert {name: fleet.engines[name] for name in before} == before
    assert set(fleet.engines) - set(before) == {"b", "10.0.0.2:8443/base"}


def test_an_engine_that_moved_is_another_engine() -> None:
    fleet = fleet_of()
    fleet.apply((record("a", "http://a:1"),))
    before = fleet.engines["a"]
    fleet.apply((record("a", "http://a:2"),))
    assert fleet.engines["a"] is not before


@pytest.mark.parametrize("url", ["http://fd00::5:8000", "http://h:80000", "http://h:${PORT}", "h:8000"])
def test_an_engine_with_a_bad_url_is_left_out_and_disturbs_no_other(url: str, caplog: pytest.LogCaptureFixture) -> None:
    fleet = fleet_of("http://s:1")
    for _ in range(3):
        fleet.apply((record("bad", url), record("a", "http://a:1")))
    assert set(fleet.engines) == {"s:1", "a"}
    fleet.apply((record("bad", url), record("a", "http://a:1", draining=True), record("b", "http://b:1")))
    assert set(fleet.engines) == {"s:1", "a", "b"}
    assert fleet.engines["a"].is_draining
    fleet.apply((record("bad", url),))
    assert set(fleet.engines) == {"s:1"}
    [said] = caplog.messages
    assert f"engine bad is left out, its URL '{url}'" in said
    fleet.apply((record("bad", "http://bad:1"),))
    assert set(fleet.engines) == {"s:1", "bad"}
    fleet.apply((record("bad", url),))
    assert set(fleet.engines) == {"s:1"}
    assert len(caplog.messages) == 2


def test_a_password_in_a_bad_url_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    fleet_of().apply((record("bad", "http://user:secret@h:80000"),))
    [said] = caplog.messages
    assert "http://***@h:80000" in said
    assert "secret" not in said


def test_an_engine_of_the_list_that_registers_is_one_engine_and_stays_when_it_deregisters() -> None:
    fleet = fleet_of("http://a:1", "http://b:1")
    assert set(fleet.engines) == {"a:1", "b:1"}
    fleet.apply((record("a", "http://a:1"),))
    assert set(fleet.engines) == {"a", "b:1"}
    fleet.apply((record("a", "http://a:1", draining=True),))
    serve(fleet.engines["b:1"])
    fleet.index()
    assert picked(fleet) == {"b:1"}
    fleet.apply(())
    assert set(fleet.engines) == {"a:1", "b:1"}


def test_every_address_of_a_name_is_one_engine() -> None:
    fleet = fleet_of()
    fleet.resolve(NAME, ("https://10.0.0.1:8443/base", "https://[fd00::1]:8443/base"))
    assert set(fleet.engines) == {"10.0.0.1:8443/base", "[fd00::1]:8443/base"}
    fleet.apply((record("a", "https://10.0.0.1:8443/base"),))
    assert set(fleet.engines) == {"a", "[fd00::1]:8443/base"}
    fleet.resolve(NAME, ("https://[fd00::1]:8443/base",))
    fleet.apply(())
    assert set(fleet.engines) == {"[fd00::1]:8443/base"}


def test_two_names_may_share_an_address() -> None:
    fleet = fleet_of()
    fleet.resolve("dns+http://one:8000", ("http://10.0.0.1:8000",))
    fleet.resolve("dns+http://two:8000", ("http://10.0.0.1:8000", "http://10.0.0.2:8000"))
    assert len(fleet.engines) == 2
    fleet.resolve("dns+http://two:8000", ("http://10.0.0.3:8000",))
    assert set(fleet.engines) == {"10.0.0.1:8000", "10.0.0.3:8000"}


@pytest.mark.parametrize(
    ("name", "url", "host"),
    [
        (NAME, "https://10.0.0.1:8443/base", b"host: vllm.example:8443\r\n"),
        ("dns+http://vllm:8000", "http://[fd00::1]:8000", b"host: vllm:8000\r\n"),
    ],
)
def test_an_address_is_asked_by_its_name(name: str, url: str, host: bytes) -> None:
    fleet = fleet_of()
    fleet.resolve(name, (url,))
    [engine] = fleet.engines.values()
    assert host in engine.head(b"GET", b"/v1/models")


def test_the_only_engine_is_taken_without_looking() -> None:
    fleet = fleet_of("http://a:1")
    [only] = fleet.engines.values()
    serve(only)
    fleet.index()
    assert fleet.pick(facts({"user": "u"}), "s", 0.0) is only
    assert not any(fleet.chooser.counts.values())
    assert fleet.pick(facts(), None, 0.0, [only]) is None

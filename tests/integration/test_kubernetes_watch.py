"""Engines by the Kubernetes API: the watch before a stand-in that lists and watches as the real one does."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specpilot.gateway.engines import kubernetes_watch
from specpilot.gateway.engines.kubernetes_watch import Cluster, EndpointWatch
from tests.support.certificates import make_certificates
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.kubernetes_api import KubernetesApi, endpoint, endpoint_slice
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import DONE, Script, ScriptedEngine, Seen, completion, reply, stream
from tests.support.stack import until

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    found = KubernetesApi(tmp_path / "account")
    yield found
    if not found.is_closed:
        found.close()


class Followed:
    """A watch that runs, and what it has handed over."""

    def __init__(self, api: KubernetesApi) -> None:
        self.seen: list[tuple[tuple[str, ...], frozenset[str]]] = []
        cluster = Cluster(api.url, api.credentials)
        self.watch = EndpointWatch("k8s+http://vllm:8000", cluster, self._take, Random(1))
        self.watch.start()

    def _take(self, name: str, urls: tuple[str, ...], draining: frozenset[str]) -> None:
        assert name == "k8s+http://vllm:8000"
        self.seen.append((urls, draining))

    def until(self, urls: tuple[str, ...], draining: tuple[str, ...] = ()) -> None:
        until(lambda: self.seen[-1:] == [(urls, frozenset(draining))], every=0.01)


@pytest.fixture
def follow(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Followed]]:
    monkeypatch.setattr(kubernetes_watch, "PAUSE_S", 0.05)
    made: list[Followed] = []

    def start() -> Followed:
        made.append(Followed(api))
        return made[-1]

    yield start
    for item in made:
        item.watch.stop()
    api.close()
    for item in made:
        item.watch._thread.join(PATIENCE_S)
        assert not item.watch._thread.is_alive()


def test_engines_appear_drain_and_vanish_as_it_happens(api: KubernetesApi, follow: Callable[[], Followed]) -> None:
    api.put(endpoint_slice("x", [endpoint("10.0.0.9")], of="another"))
    followed = follow()
    followed.until(())  # the API server knows that there are none
    api.put(endpoint_slice("a", [endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False)]))
    followed.until((A,))
    api.put(endpoint_slice("a", [endpoint("10.0.0.1"), endpoint("10.0.0.2")]))
    followed.until((A, B))
    api.put(endpoint_slice("a", [endpoint("10.0.0.1", ready=False, terminating=True), endpoint("10.0.0.2")]))
    followed.until((A, B), draining=(A,))
    api.put(endpoint_slice("b", [endpoint("10.0.0.2")]))
    api.delete("a")
    followed.until((B,))
    assert len([query for query in api.requests if "watch" not in query]) == 1
    assert {query["labelSelector"] for query in api.requests} == {"kubernetes.io/service-name=vllm"}


def test_a_watch_that_ends_or_is_cut_goes_on_from_the_last_version(
    api: KubernetesApi, follow: Callable[[], Followed]
) -> None:
    followed = follow()
    followed.until(())
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    followed.until((A,))
    for item in range(3):  # another service's: only bookmarks bring its versions
        api.put(endpoint_slice("x", [endpoint(f"10.0.0.{item}")], of="another"))
    api_version = api.version
    until(lambda: api.bookmarked == api_version)
    api.end()
    until(lambda: len(api.watches) >= 2)
    assert int(api.watches[1]["resourceVersion"]) == api_version
    api.cut()
    until(lambda: len(api.watches) >= 3)
    api.put(endpoint_slice("a", [endpoint("10.0.0.1"), endpoint("10.0.0.2")]))
    followed.until((A, B))
    assert len([query for query in api.requests if "watch" not in query]) == 1
    assert followed.seen == [((), frozenset()), ((A,), frozenset()), ((A, B), frozenset())]


@pytest.mark.parametrize("as_event", [False, True])
def test_a_version_that_is_gone_is_listed_anew_and_missed_deletions_count(
    as_event: bool, api: KubernetesApi, follow: Callable[[], Followed]
) -> None:
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    api.put(endpoint_slice("b", [endpoint("10.0.0.2")]))
    api.gone_as_event = as_event
    followed = follow()
    followed.until((A, B))
    with api.lock:
        api.cut()
        api.delete("a")
        api.put(endpoint_slice("x", [endpoint("10.0.0.9")], of="another"))
        api.compact()
    followed.until((B,))
    assert len([query for query in api.requests if "watch" not in query]) == 2


def test_the_token_is_read_again_as_the_kubelet_replaces_it(api: KubernetesApi, follow: Callable[[], Followed]) -> None:
    followed = follow()
    followed.until(())
    api.set_token("second")
    api.cut()
    until(lambda: len(api.watches) == 2)
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    followed.until((A,))
    assert {api.tokens[0], api.tokens[-1]} == {"Bearer first", "Bearer second"}


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (401, "the account's token is not accepted"),
        (403, "give the gateway's service account `list` and `watch` of `endpointslices` in models"),
        (500, "the API server answers 500: as the test wants"),
    ],
)
def test_a_refusal_keeps_the_engines_and_is_said_once_with_the_remedy(
    refusal: int,
    said: str,
    api: KubernetesApi,
    follow: Callable[[], Followed],
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    followed = follow()
    followed.until((A,))
    until(lambda: len(api.watches) == 1)
    with caplog.at_level(logging.WARNING):
        api.refusal = refusal
        api.cut()
        until(lambda: len(api.watches) >= 4)
        api.refusal = None
        api.put(endpoint_slice("a", [endpoint("10.0.0.2")]))
        followed.until((B,))
    complaints = [item.message for item in caplog.records if said in item.message]
    assert len(complaints) == 1
    assert "keeping its 1 slices" in complaints[0]
    assert followed.seen == [((A,), frozenset()), ((B,), frozenset())]


def test_an_api_server_that_is_gone_keeps_the_engines_and_is_found_again(
    api: KubernetesApi, follow: Callable[[], Followed], caplog: pytest.LogCaptureFixture
) -> None:
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    followed = follow()
    followed.until((A,))
    with caplog.at_level(logging.WARNING):
        api.close()
        until(lambda: any("cannot be followed" in item.message for item in caplog.records))
    assert followed.watch.list_once().urls == (A,)
    assert followed.seen == [((A,), frozenset())]


def test_the_certificate_is_checked_with_the_accounts_ca(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "tls")
    api = KubernetesApi(tmp_path / "account", certificates)
    api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
    watch = EndpointWatch("k8s+http://vllm:8000", Cluster(api.url, api.credentials), lambda *_: None, Random(1))
    try:
        assert watch.list_once().urls == (A,)
        (api.credentials / "ca.crt").write_bytes((make_certificates(tmp_path / "other") / "ca.pem").read_bytes())
        other = EndpointWatch("k8s+http://vllm:8000", Cluster(api.url, api.credentials), lambda *_: None, Random(1))
        assert other.list_once().urls == ()
        assert watch.list_once().urls == (A,)  # what was known holds
    finally:
        api.close()


def test_a_closed_loop_ends_the_thread(api: KubernetesApi) -> None:
    called = threading.Event()

    def closed(name: str, urls: tuple[str, ...], draining: frozenset[str]) -> None:
        called.set()
        raise RuntimeError("the loop is closed")

    watch = EndpointWatch("k8s+http://vllm:8000", Cluster(api.url, api.credentials), closed, Random(1))
    watch.start()
    assert called.wait(PATIENCE_S)
    watch._thread.join(PATIENCE_S)
    assert not watch._thread.is_alive()


async def test_a_gateway_serves_by_the_watch_and_a_terminating_engine_ends_what_it_has(tmp_path: Path) -> None:
    """Two engines on one port, as pods have them: the loopback's second address stands for the second pod."""
    first = await ScriptedEngine(host="127.0.0.1").start()
    second = ScriptedEngine(host="127.0.0.2")
    second.port = first.port
    await second.start()
    api = KubernetesApi(tmp_path / "account")
    api.put(endpoint_slice("a", [endpoint("127.0.0.1")], ports=(first.port,)))
    flags = ["--kubernetes-api", api.url, "--kubernetes-credentials", str(api.credentials)]
    gateway = GatewayProgram(["--engine", f"k8s+http://vllm.models:{first.port}", *flags])
    try:
        await gateway.started()
        assert (await call(gateway.port)).status == 200  # found before the port opened
        is_late = asyncio.Event()
        first.script = [is_late, reply(completion("late"))]
        async with await Client.connect(gateway.port) as slow:
            slow.send(request())
            await first.wait_seen(2)
            first.script = [reply(completion())]
            ending = endpoint("127.0.0.1", ready=False, terminating=True)
            api.put(endpoint_slice("a", [ending, endpoint("127.0.0.2")], ports=(first.port,)))
            seen = len(first.seen)

            async def goes_to_second() -> bool:
                return (await call(gateway.port)).status == 200 and bool(second.seen)

            while not await goes_to_second():
                pass
            seen = len(first.seen)
            assert [(await call(gateway.port)).status for _ in range(5)] == [200] * 5
            assert len(first.seen) == seen
            is_late.set()
            late = await slow.answer()
            assert (late.status, "late" in late.body.decode()) == (200, True)
        api.put(endpoint_slice("a", [endpoint("127.0.0.2")], ports=(first.port,)))
        await first.stop()
        assert [(await call(gateway.port)).status for _ in range(5)] == [200] * 5
        api.close()  # the API server goes, requests do not notice
        assert (await call(gateway.port)).status == 200
    finally:
        gateway.close()
        await first.stop()
        await second.stop()
        if not api.is_closed:
            api.close()


def served(seen: Seen) -> Script:
    """Some milliseconds of work, so that every pod that ends has requests in flight."""
    return [0.02, *stream("a", "b", "c")] if seen.json.get("stream") else [0.02, reply(completion())]


async def call_until(ended: asyncio.Event, port: int, body: dict[str, Any] | None, counts: Counter[str]) -> None:
    """One caller on a connection that it keeps. Failed: an answer that is not 200; lost: none, or not a whole one."""
    while not ended.is_set():
        async with await Client.connect(port) as client:
            is_open = True
            while is_open and not ended.is_set():
                counts["sent"] += 1
                client.send(request(body))
                try:
                    answer = await client.answer()
                except (OSError, EOFError):
                    counts["lost"] += 1
                    break
                is_whole = answer.is_whole and (body is None or DONE in answer.body)
                counts["lost" if not is_whole else "ok" if answer.status == 200 else "failed"] += 1
                is_open = is_whole and answer.headers.get("connection") != "close"


async def quiet(engine: ScriptedEngine, gateway: GatewayProgram) -> None:
    """Wait until the gateway has heard that the engine terminates, and has nothing left there."""
    asked = request(path="/admin/config", method="GET", headers="authorization: Bearer t\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            [known] = [one for one in (await call(gateway.port, asked)).json["engines"] if one["url"] == engine.url]
            if known["is_draining"] and known["outstanding_requests"] == 0:
                return


async def test_a_rolling_update_of_pods_under_load_fails_and_loses_nothing(tmp_path: Path) -> None:
    """Two pods are replaced, one after the other: the new one is ready before the old one terminates."""
    engines = [await ScriptedEngine(host="127.0.0.1").start()]
    for last in (2, 3, 4):
        engines.append(ScriptedEngine(host=f"127.0.0.{last}"))
        engines[-1].port = engines[0].port
        await engines[-1].start()
    for engine in engines:
        engine.choose = served
    pods, made = engines[:2], engines[2:]
    api = KubernetesApi(tmp_path / "account")

    def state(*states: dict[str, Any]) -> None:
        api.put(endpoint_slice("a", states, ports=(engines[0].port,)))

    state(*(endpoint(pod.host) for pod in pods))
    flags = ["--kubernetes-api", api.url, "--kubernetes-credentials", str(api.credentials)]
    gateway = GatewayProgram(["--engine", f"k8s+http://vllm.models:{engines[0].port}", "--admin-token", "t", *flags])
    counts, ended, callers = Counter[str](), asyncio.Event(), list[asyncio.Task[None]]()
    try:
        await gateway.started()
        bodies = [None, STREAM] * 4
        callers += [asyncio.create_task(call_until(ended, gateway.port, body, counts)) for body in bodies]
        await eventually(lambda: all(len(pod.seen) > 10 for pod in pods))
        for new in made:
            old = pods.pop(0)
            pods.append(new)
            state(endpoint(old.host), *(endpoint(pod.host) for pod in pods))
            await eventually(lambda new=new: len(new.seen) > 10)  # type: ignore[misc]
            state(endpoint(old.host, ready=False, terminating=True), *(endpoint(pod.host) for pod in pods))
            await quiet(old, gateway)  # it serves on while the gateway hears of it
            state(*(endpoint(pod.host) for pod in pods))
            await old.stop()
        had = counts["ok"]
        await eventually(lambda: counts["ok"] > had + 50)
        ended.set()
        await asyncio.gather(*callers)
    finally:
        ended.set()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        gateway.close()
        for engine in engines:
            await engine.stop()
        api.close()
    assert (counts["failed"], counts["lost"]) == (0, 0), counts
    assert counts["sent"] == counts["ok"] > 200

"""Dashboards and alerts on a real Prometheus that scrapes a real controller, a real gateway and their engine."""

import asyncio
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import aiohttp
import pytest
from aiohttp import web

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.canary import Block, Canary, Experiment, Gain
from specpilot.policy.codec import from_plain
from specpilot.policy.gain import LogGain
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import Policy
from specpilot.policy.model_routes import ModelRoutes
from specpilot.policy.records import Lease
from specpilot.policy.store import Store
from tests.simulation.engine import MODEL, POOL
from tests.simulation.traffic import Source
from tests.support.controller_engine import HttpEngine
from tests.support.controller_program import free_port, running_controller
from tests.support.gateway_server import GatewayThread
from tests.support.loop_rig import Rig
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import DONE, event, usage_event
from tests.support.stack import until

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = shutil.which("prometheus")
BOARD = json.loads((ROOT / "deploy" / "grafana" / "specpilot.json").read_text())
QUERIES = [
    *((panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", ())),
    *((item["name"], item["expr"]) for item in BOARD["annotations"]["list"]),
]
ABSENT = re.compile(r'DCGM_|reason="fallen_back"|running_limit')
"""What is not there: GPUs, a law that loses, and a limit on running requests."""

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus (Debian: prometheus)"),
    pytest.mark.timeout(400),  # for the first one, which waits for all that it starts
]


def held_out() -> str:
    """The metrics of a control group and of latency goals, in virtual time, because real ones take a minute to fill."""
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL, control_group_ratio=0.4, slo=Slo(tpot_ms={Statistic.P95: 10.0})), None, 0.0)
    asyncio.run(rig.tick(100))
    wanted = re.compile("specpilot_controller_(control_group_gain|slo_|lease_held)")
    return "".join(line + "\n" for line in rig.page().splitlines() if wanted.match(line))


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})


class Chat:
    """Replies as streams; the first connection is dropped."""

    def __init__(self) -> None:
        self.asked = 0

    async def reply(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.asked += 1
        if self.asked == 1 and request.transport is not None:
            request.transport.abort()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with suppress(ConnectionError):
            await response.prepare(request)
            for frame in (*(event("word", model=MODEL) for _ in range(5)), usage_event(5, 2.5, MODEL), DONE):
                await response.write(frame)
                await asyncio.sleep(0.01)
        return response


async def ask(session: aiohttp.ClientSession, url: str, model: str, *, leaves: bool = False) -> None:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": "Bearer sk-dashboard", "X-Traffic-Class": "unheard-of"}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
        await reply.content.read(1)
        if not leaves:
            await reply.read()


@asynccontextmanager
async def served(store: Store, redis_url: str) -> AsyncIterator[list[str]]:
    """An engine with traffic, and a gateway with more than it has room for; the addresses of both."""
    store.put_api_key(ApiKey("dashboard", sha256_of("sk-dashboard")))
    routes = from_plain(ModelRoutes, {"routes": {"alias": {"split": [{"model": MODEL}]}}})
    store.put_model_routes(routes, 0, time.time())
    page = await asyncio.to_thread(held_out)

    async def shown(_: web.Request) -> web.Response:
        return web.Response(text=page)

    pages = [
        web.get("/v1/models", models),
        web.post("/v1/chat/completions", Chat().reply),
        web.get("/held-out", shown),
    ]
    async with HttpEngine(store, routes=pages) as engine, aiohttp.ClientSession() as session:
        engine.sources = [Source(kind, 6, prompt_tokens=64) for kind in ("json", "code_hot")]
        gateway = await GatewayThread(redis_url=redis_url, engine_capacity=1, queue_limit=1, show_engine=True).start()

        async def traffic() -> None:
            while True:
                asked = [ask(session, gateway.url, name, leaves=name == MODEL) for name in (MODEL, "alias", "alias")]
                await asyncio.gather(*asked, return_exceptions=True)
                await asyncio.sleep(0.2)

        task = asyncio.create_task(traffic())
        try:
            yield [engine.url, gateway.url]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gateway.leave()
            await asyncio.to_thread(gateway.join)


def tried(store: Store) -> None:
    """Write a policy, and let a canary run that has three blocks already."""
    policy = Policy(MODEL, control_group_ratio=0.4)
    store.put_policy(policy, 0, time.time())
    blocks = tuple(Block(index, {POOL: Gain(5.0, 0.05 + index / 100, 0.04)}) for index in range(3))
    canary = Canary(Policy(MODEL, k_max=5))
    began_at = time.time() - 3 * canary.block_s - 1
    store.put_canary(Experiment(1, "seed", canary, 1, began_at, blocks), None, time.time())


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus server with the alerts' rules, which has scraped for some seconds."""
    folder = tmp_path_factory.mktemp("prometheus")
    ready, is_over = threading.Event(), threading.Event()
    urls: list[str] = []
    with running_controller() as controller:
        store = Store(controller.redis.url, PATIENCE_S)
        store._redis.config_set("maxmemory", "1gb")
        lease = Lease("test", int(store._redis.get(redis_keys.FENCE)))
        for log_gain in (0.04, 0.05, 0.06, 0.05, 0.04):
            store.add_gain(MODEL, POOL, time.time(), LogGain(log_gain, -log_gain), lease)

        async def live() -> None:
            async with served(store, controller.redis.url) as found:
                urls.extend(found)
                ready.set()
                await asyncio.to_thread(is_over.wait)

        thread = threading.Thread(target=lambda: asyncio.run(live()))
        thread.start()
        assert ready.wait(PATIENCE_S)
        targets = [url.removeprefix("http://") for url in (controller.url, *urls)]
        config = folder / "prometheus.yml"
        scrape = {"job_name": "specpilot", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
        other = {**scrape, "job_name": "specpilot-held-out", "metrics_path": "/held-out"}
        other["static_configs"] = [{"targets": [targets[1]]}]
        rules = str(ROOT / "deploy" / "prometheus" / "rules" / "*.yml")
        # JSON is YAML, too.
        config.write_text(
            json.dumps(
                {"global": {"evaluation_interval": "2s"}, "rule_files": [rules], "scrape_configs": [scrape, other]}
            )
        )
        port = free_port()
        command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: bool(answer(url, "specpilot_gateway_policy_version == 0")))
            tried(store)
            with suppress(AssertionError):  # which one is silent, the tests say
                until(lambda: not silent(url), every=0.5)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            is_over.set()
            thread.join(PATIENCE_S)
            store.close()


def silent(url: str) -> list[str]:
    """The queries that should be answered, and are not."""
    return [title for title, query in QUERIES if not ABSENT.search(query) and not answer(url, filled(query))]


def answer(url: str, query: str) -> list[Any]:
    """What Prometheus answers; fails when it does not understand the query."""
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=PATIENCE_S) as response:
            found: list[Any] = json.loads(response.read())["data"]["result"]
            return found
    except HTTPError as error:
        with error:
            if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
                return []  # it has yet to read its files
            raise AssertionError(f"{query}: {error.read().decode()}") from error
    except OSError:
        return []  # it does not answer yet


def filled(query: str) -> str:
    for name, value in (("$__rate_interval", "10s"), ("$model", MODEL), ("$gpus", "1"), ("$price", "2")):
        query = query.replace(name, value)
    return query


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[f"{title} {at}" for at, (title, _) in enumerate(QUERIES)])
def test_every_query_of_the_dashboard_is_understood_and_answers(prometheus: str, title: str, query: str) -> None:
    found = answer(prometheus, filled(query))
    if not ABSENT.search(query):
        assert found, f"{title}: {query}"


def test_every_alert_is_evaluated_and_quiet_while_all_is_well(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        with urlopen(f"{prometheus}/api/v1/rules", timeout=PATIENCE_S) as response:
            groups = json.loads(response.read())["data"]["groups"]
            return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] == "ok" for rule in rules()), 90.0, every=0.5)
    assert {rule["name"]: rule["state"] for rule in rules() if rule.get("state") == "firing"} == {}

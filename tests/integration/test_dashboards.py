"""Dashboards and alerts on a real Prometheus that scrapes a real controller and an engine it steers."""

import asyncio
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from specpilot.bench.simulation.engine import MODEL
from specpilot.policy.redis_store import RedisStore
from tests.support.controller_engine import HttpEngine
from tests.support.controller_program import free_port, running_controller
from tests.support.stack import until

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = shutil.which("prometheus")
BOARD = json.loads((ROOT / "deploy" / "grafana" / "specpilot.json").read_text())
QUERIES = [
    *((panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", ())),
    *((item["name"], item["expr"]) for item in BOARD["annotations"]["list"]),
]
ABSENT = re.compile(
    r"specpilot_gateway_|DCGM_|catch_up|prefill|probes|backlog|schedule_version|schedule_age|active_k|running_dec|canary|hold_out"
)
"""What is not there within seconds: gateways, GPUs, what the stand-in does not count, windows of the hold-out."""

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus (Debian: prometheus)")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus server with the alerts' rules, which has scraped for some seconds."""
    folder = tmp_path_factory.mktemp("prometheus")
    ready, is_over = threading.Event(), threading.Event()
    engines: list[HttpEngine] = []
    with running_controller() as controller:
        store = RedisStore(controller.redis.url)

        async def live() -> None:
            async with HttpEngine(store) as engine:
                engines.append(engine)
                ready.set()
                await asyncio.to_thread(is_over.wait)

        thread = threading.Thread(target=lambda: asyncio.run(live()))
        thread.start()
        assert ready.wait(10)
        targets = [item.url.removeprefix("http://") for item in (controller, engines[0])]
        config = folder / "prometheus.yml"
        scrape = {"job_name": "specpilot", "scrape_interval": "1s", "static_configs": [{"targets": targets}]}
        rules = str(ROOT / "deploy" / "prometheus" / "rules" / "*.yml")
        # JSON is YAML, too.
        config.write_text(
            json.dumps({"global": {"evaluation_interval": "2s"}, "rule_files": [rules], "scrape_configs": [scrape]})
        )
        port = free_port()
        command = [str(PROMETHEUS), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: bool(answer(url, "specpilot_controller_lease_held")), 30.0)
            until(
                lambda: bool(answer(url, f'rate(specpilot_engine_drafts_total{{model_name="{MODEL}"}}[5s]) > 0')), 30.0
            )
            until(
                lambda: bool(answer(url, "specpilot_controller_measured_weighted_throughput_tokens_per_second > 0")),
                30.0,
            )
            until(lambda: bool(answer(url, "increase(specpilot_controller_decisions_total[1m])")), 30.0)
            yield url
        finally:
            process.terminate()
            process.wait(20)
            is_over.set()
            thread.join(10)
            store.close()


def answer(url: str, query: str) -> list[Any]:
    """What Prometheus answers; fails when it does not understand the query."""
    try:
        with urlopen(f"{url}/api/v1/query?{urlencode({'query': query})}", timeout=10) as response:
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
    if not ABSENT.search(query) and "> 0" not in query:
        assert found, f"{title}: {query}"


def test_every_alert_is_evaluated_and_quiet_while_all_is_well(prometheus: str) -> None:
    def rules() -> list[dict[str, Any]]:
        with urlopen(f"{prometheus}/api/v1/rules", timeout=10) as response:
            groups = json.loads(response.read())["data"]["groups"]
            return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] == "ok" for rule in rules()), 90.0, every=0.5)
    assert {rule["name"]: rule["state"] for rule in rules() if rule["state"] == "firing"} == {}

"""The adapter's metrics on the page of a server that has others. That of vLLM itself: `tests/e2e`."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, Counter, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Mount

from specpilot.engine_adapter.agent.export import FOLDER, MetricsExporter
from specpilot.engine_adapter.agent.exposition import MetricsMiddleware, route_path
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.policy import engine_metrics as names


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    registry = CollectorRegistry()
    Counter("vllm:things", "Things", registry=registry).inc(2)
    app = FastAPI()
    route = Mount("/metrics", make_asgi_app(registry=registry))
    route.path_regex = re.compile("^/metrics(?P<path>.*)$")  # as vLLM has it
    app.routes.append(route)
    app.get("/other")(lambda: {"is": "other"})
    app.add_middleware(MetricsMiddleware)
    return TestClient(app)


def exporter() -> MetricsExporter:
    found = MetricsExporter("m")
    found.add(Evidence(tokens={("chat", 7): 5}))  # type: ignore[arg-type]
    found.show({names.RUNNING_DECODES: {"chat": 3}, names.ACTIVE_K: {"chat": 2.5}, names.SCHEDULE_VERSION: 4})
    found.write()
    return found


def values(text: str) -> dict[str, float]:
    return {found.name: found.value for family in text_string_to_metric_families(text) for found in family.samples}


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0"])
def test_both_are_on_the_page(client: TestClient, accept: str) -> None:
    exporter()
    answer = client.get("/metrics", headers={"accept": accept})
    found = values(answer.text)
    assert (found["vllm:things_total"], found[names.DECODE_TOKENS], found[names.RUNNING_DECODES]) == (2.0, 5.0, 3.0)
    assert answer.headers["content-type"].startswith("text/plain")
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_before_an_engine_core_wrote_anything_the_page_is_the_servers(client: TestClient) -> None:
    assert set(values(client.get("/metrics").text)) >= {"vllm:things_total"}
    assert client.get("/metrics", params={"name[]": names.STEPS}).text == ""


def test_a_refusal_of_the_server_stays_one(client: TestClient) -> None:
    exporter()
    app = FastAPI()
    app.add_middleware(MetricsMiddleware)
    answer = TestClient(app).get("/metrics")
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_a_query_for_the_adapters_metrics_gets_them_without_the_servers_page(client: TestClient) -> None:
    exporter()
    answer = client.get("/metrics", params=[("name[]", names.DECODE_TOKENS), ("name[]", names.ACTIVE_K)])
    assert values(answer.text) == {names.DECODE_TOKENS: 5.0, names.ACTIVE_K: 2.5}
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_each_data_parallel_rank_has_its_series_and_its_page(client: TestClient) -> None:
    for rank in (0, 1):
        found = MetricsExporter("m", rank)
        found.add(Evidence(tokens={("chat", 7): 5 + rank}))  # type: ignore[arg-type]
        found.write()
    asked = {"name[]": names.DECODE_TOKENS}
    for query, expected in (({}, {"0": 5.0, "1": 6.0}), ({"engine": "1"}, {"1": 6.0}), ({"engine": "../1"}, {})):
        families = text_string_to_metric_families(client.get("/metrics", params=asked | query).text)
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["engine"]: sample.value for sample in samples} == expected


def test_the_path_may_end_with_a_slash(client: TestClient) -> None:
    exporter()
    assert values(client.get("/metrics/").text).keys() >= {"vllm:things_total", names.DECODE_TOKENS}


def test_other_paths_are_not_touched(client: TestClient) -> None:
    assert client.get("/other").json() == {"is": "other"}


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [("", "/a", "/a"), ("/x", "/x/a", "/a"), ("/x", "/a", "/a"), ("/x", "/xa", "/xa"), ("/x", "/x", "/x")],
)
def test_the_path_within_the_application(root: str, path: str, expected: str) -> None:
    assert route_path({"path": path, "root_path": root}) == expected

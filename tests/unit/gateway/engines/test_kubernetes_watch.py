"""An API server that answers what cannot be read; `tests/integration` has the rest, with a cluster's API as it is."""

from pathlib import Path
from random import Random

import pytest

from specpilot.gateway.engines.endpoint_slices import Endpoints
from specpilot.gateway.engines.kubernetes_watch import Cluster, EndpointWatch
from tests.support.kubernetes_api import KubernetesApi, endpoint, endpoint_slice


def test_a_first_list_that_cannot_be_read_gives_no_engine_and_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = KubernetesApi(tmp_path)
    try:
        watch = EndpointWatch("k8s+http://vllm:8000", Cluster(api.url, tmp_path), lambda *_: None, Random(1))
        for broken in ({"ports": [{"port": "http"}]}, {"endpoints": [7]}, {"endpoints": [{"addresses": {"a": 1}}]}):
            api.put({**endpoint_slice("a", [endpoint("10.0.0.1")]), **broken})
            caplog.clear()
            assert watch.list_once() == Endpoints()
            assert "is not a list of EndpointSlices" in caplog.text
        api.put(endpoint_slice("a", [endpoint("10.0.0.1")]))
        assert watch.list_once() == Endpoints(("http://10.0.0.1:8000",))
        api.put({**endpoint_slice("a", []), "endpoints": [7]})
        assert watch.list_once() == Endpoints(("http://10.0.0.1:8000",))  # what was known holds
    finally:
        api.close()

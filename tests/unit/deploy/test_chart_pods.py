"""Pods of the chart: arguments that the programs read, ports, probes, draining, and what a pod may on its node."""

import re

import pytest

from specpilot.controller.settings import ControllerSettings
from specpilot.engine_adapter.__main__ import _parser
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.settings import load
from tests.support.chart import FULL, OWN_REDIS, containers, named, render


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_node_can_be_drained_of_the_last_gateway_and_of_one_that_is_not_ready(replicas: int) -> None:
    budget = named(render({"gateway": {"replicas": replicas}}), "PodDisruptionBudget", "rel-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_programs_read_their_arguments_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for container in containers(render(FULL)):
        monkeypatch.setenv("REDIS_URL", "redis://r")
        for item in container["env"]:
            monkeypatch.setenv(item["name"], item.get("value", "x"))
        monkeypatch.setenv("REDIS_URL", "redis://r")
        kind, arguments = container["name"], container["args"]
        if kind == "gateway":
            found = load(GatewaySettings, "gateway", arguments[1:])
            assert (found.host, found.engine_capacity, found.drain_timeout_s) == ("0.0.0.0", 64, 120.0)
            assert found.admin_port == 8082
            assert found.tls_cert_file == "/etc/specpilot-tls/tls.crt"
        elif kind == "controller":
            read = load(ControllerSettings, "controller", arguments[1:])
            assert (read.interval_s, read.oidc_claim) == (1.0, "roles")
        else:
            ours, passed = _parser().parse_known_args(arguments)
            assert ours.advertise_url == "http://$(POD_IP):8000"
            assert int(ours.drain_timeout_s) > 0
            assert passed


def test_gateways_have_their_metrics_on_a_port_that_no_service_offers() -> None:
    manifests = render({"gateway": {"service": {"type": "LoadBalancer"}}})
    [gateway] = named(manifests, "Deployment", "rel-gateway")["spec"]["template"]["spec"]["containers"]
    [offered] = named(manifests, "Service", "rel-gateway")["spec"]["ports"]
    assert offered["targetPort"] == "http"
    ports = {item["name"]: item["containerPort"] for item in gateway["ports"]}
    assert ports == {"http": 8080, "admin": 8082}
    assert f"--admin-port={ports['admin']}" in gateway["args"]
    probes = [gateway[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {(probe["port"], probe["scheme"]) for probe in probes} == {("admin", "HTTP")}


def test_the_releases_own_redis_is_pulled_and_placed_like_the_rest() -> None:
    pod = named(render(OWN_REDIS), "StatefulSet", "rel-redis")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]


def test_pods_run_as_nobody_on_a_read_only_root_and_outlive_their_drain() -> None:
    for manifest in render(FULL):
        if manifest["kind"] != "Deployment":
            continue
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        is_watching = any("--engine=k8s+" in flag for flag in pod["containers"][0]["args"])
        assert pod["automountServiceAccountToken"] is is_watching
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            if container["name"] != "engine":  # vLLM compiles into its home
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
            drains = [re.search(r"drain-timeout-s=(\d+)", flag) for flag in container["args"]]
            assert all(pod["terminationGracePeriodSeconds"] > int(found[1]) for found in drains if found)

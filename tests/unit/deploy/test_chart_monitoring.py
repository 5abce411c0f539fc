"""What the chart gives Prometheus and Grafana: monitors, rules, dashboards."""

import json
import re
from pathlib import Path

import yaml

from tests.support.chart import CHART, FULL, named, render


def test_a_gateway_with_tls_is_probed_and_scraped_by_it() -> None:
    manifests = render(FULL)
    [gateway] = named(manifests, "Deployment", "rel-gateway")["spec"]["template"]["spec"]["containers"]
    probes = [gateway[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3
    [endpoint] = named(manifests, "PodMonitor", "rel-gateways")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    [endpoint] = named(render({"monitoring": {"podMonitor": True}}), "PodMonitor", "rel-gateways")["spec"][
        "podMetricsEndpoints"
    ]
    assert "scheme" not in endpoint


def test_prometheus_scrapes_each_pod_once_under_the_jobs_of_the_rules() -> None:
    manifests = render(FULL)
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "rules" / "specpilot.yml").read_text())
    [expression] = [rule["expr"] for rule in rules["groups"][0]["rules"] if rule.get("alert") == "SpecPilotPartDown"]
    [jobs] = re.findall(r'job=~"([^"]+)"', expression)
    monitors = [item for item in manifests if item["kind"] in ("PodMonitor", "ServiceMonitor")]
    scraped: list[str] = []
    for monitor in monitors:
        assert monitor["kind"] == "PodMonitor"
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        relabelled = {item["targetLabel"]: item for item in endpoint["relabelings"]}
        assert re.fullmatch(jobs, relabelled["job"]["replacement"])  # else it would be <namespace>/<monitor's name>
        for item in manifests:
            if item["kind"] != "Deployment":
                continue
            pod = item["spec"]["template"]
            if monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items():
                scraped.append(item["metadata"]["name"])
                assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
                if "engine" in scraped[-1]:
                    assert relabelled["pool"]["sourceLabels"] == ["__meta_kubernetes_pod_label_specpilot_pool"]
                    assert pod["metadata"]["labels"]["specpilot/pool"] in scraped[-1]
    assert sorted(scraped) == sorted(item["metadata"]["name"] for item in manifests if item["kind"] == "Deployment")


def test_rules_and_dashboards_are_those_of_the_repository() -> None:
    for name in ("rules", "dashboards"):
        assert (CHART / "files" / name).resolve().is_dir()
    boards = [item for item in render(FULL) if item["kind"] == "ConfigMap"]
    for board in boards:
        [(name, text)] = board["data"].items()
        assert json.loads(text) == json.loads((Path(CHART / "files" / "dashboards") / name).read_text())

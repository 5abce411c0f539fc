"""The chart: rendered in every shape, valid for Kubernetes, wrong values named, its arguments read by the programs."""

import ast
import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from specpilot.controller.settings import ControllerSettings
from specpilot.engine_adapter.__main__ import _parser
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy import redis_url
from specpilot.policy.settings import load
from tests.support.custom_resources import SCHEMAS as CUSTOM
from tests.support.helm_template import CHART, render, values

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
PAGE = (CHART.parents[2] / "docs" / "get-started" / "kubernetes.md").read_text()
POOL = {"name": "h200", "model": "openai/gpt-oss-20b", "drafter": "amazon/GPT-OSS-20B-P-EAGLE"}
FULL: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "gateway": {
        "args": ["--engine-capacity=64", "--api-keys-file=/etc/keys/keys.json"],
        "env": [
            {
                "name": "SPECPILOT_GATEWAY_ENGINE_API_KEY",
                "valueFrom": {"secretKeyRef": {"name": "engines", "key": "api-key"}},
            }
        ],
        "volumes": [{"name": "keys", "secret": {"secretName": "client-keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/etc/keys", "readOnly": True}],
        "tlsSecret": "llm-tls",
        "watch": [{"service": "rel-engine-h200", "port": 8000}, {"service": "vllm", "namespace": "others"}],
        "autoscaling": {"enabled": True},
        "ingress": {"enabled": True, "className": "nginx", "host": "llm.example.com", "tlsSecret": "tls"},
        "httpRoute": {
            "enabled": True,
            "gatewayName": "public",
            "gatewayNamespace": "infra",
            "hostnames": ["a.example"],
        },
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    },
    "controller": {
        "args": ["--interval-s=1"],
        "env": [{"name": "SPECPILOT_CONTROLLER_OIDC_CLAIM", "value": "roles"}],
        "volumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "volumeMounts": [{"name": "authorities", "mountPath": "/etc/ssl/certs"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
    },
    "engineControlToken": {"secretName": "engine"},
    "pools": [
        POOL,
        {
            **POOL,
            "name": "b200",
            "replicas": 3,
            "gpus": 2,
            "kMax": 5,
            "servedModelName": "gpt",
            "args": ["--gpu-memory-utilization=0.9"],
            "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
            "modelsClaim": "models",
            "nodeSelector": {"gpu": "b200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "100Gi"}},
            "maxSurge": 0,
            "maxUnavailable": "25%",
            "drainSeconds": 60,
        },
    ],
    "redis": {"enabled": False, "urlSecret": "redis-url", "caSecret": "redis-ca"},
    "monitoring": {
        "podMonitor": True,
        "prometheusRule": True,
        "dashboards": True,
        "labels": {"release": "prometheus"},
    },
}
OWN_REDIS: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "pools": [POOL],
    "redis": {
        "tlsSecret": "redis-tls",
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    },
}
SHAPES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one pool": {"pools": [POOL]},
    "own Redis with TLS": OWN_REDIS,
    "full": FULL,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_manifest_is_valid_for_kubernetes(shape: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the extra `dev` brings it")
    given = values(SHAPES[shape])
    jsonschema.validate(given, SCHEMA)
    manifests = render(given)
    assert len(manifests) > 8
    for manifest in manifests:
        if manifest["kind"] in CUSTOM:
            jsonschema.validate(manifest, CUSTOM[manifest["kind"]])
        else:
            validate.validate(manifest, "1.32", strict=True)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("HTTPRoute", "'parentRefs'", "'parentRef'"),
        ("HTTPRoute", "'PathPrefix'", "'Prefix'"),
        ("HTTPRoute", "'port': 80", "'port': 'http'"),
        ("PodMonitor", "'podMetricsEndpoints'", "'endpoints'"),
        ("PodMonitor", "'targetLabel'", "'target_label'"),
        ("PodMonitor", "'port': 'http'", "'port': 8000"),
        ("PrometheusRule", "'expr'", "'expression'"),
        ("PrometheusRule", "'for': '5m'", "'for': 5"),
        ("PrometheusRule", "'alert'", "'alerts'"),
    ],
)
def test_a_resource_that_is_not_of_kubernetes_itself_is_validated_too(kind: str, right: str, wrong: str) -> None:
    manifest = next(item for item in render(values(FULL)) if item["kind"] == kind)
    jsonschema.validate(manifest, CUSTOM[kind])
    assert right in str(manifest)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(ast.literal_eval(str(manifest).replace(right, wrong)), CUSTOM[kind])


def test_everything_that_can_be_asked_for_is_there() -> None:
    kinds = [item["kind"] for item in render(values(FULL))]
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Ingress", "HTTPRoute", "NetworkPolicy"} <= set(kinds)
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= set(kinds)
    assert kinds.count("Deployment") == 4
    assert "StatefulSet" not in kinds
    names = [(item["kind"], item["metadata"]["name"]) for item in render(values(FULL))]
    assert len(names) == len(set(names))


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gatway", {"gatway": {}}),
    ("replicas", {"gateway": {"replicas": 0}}),
    ("service", {"gateway": {"watch": [{"namespace": "models"}]}}),
    ("watch.0.port", {"gateway": {"watch": [{"service": "vllm", "port": "http"}]}}),
    ("replica", {"controller": {"replica": 2}}),
    ("drafter", {"pools": [{"name": "a", "model": "m"}]}),
    ("name", {"pools": [{**POOL, "name": "H 200"}]}),
    ("kMax", {"pools": [{**POOL, "kMax": 65}]}),
    ("urlSecret", {"redis": {"enabled": False}}),
    ("maxmemory", {"redis": {"maxmemory": "1 GB"}}),
    ("host", {"gateway": {"ingress": {"enabled": True}}}),
    ("gatewayName", {"gateway": {"httpRoute": {"enabled": True}}}),
    # what Kubernetes would refuse, or take and not use, in the parts of a pod
    ("imagePullSecrets.0", {"imagePullSecrets": [{"nam": "registry"}]}),
    ("limit", {"gateway": {"resources": {"limit": {"memory": "1Gi"}}}}),
    ("resources.limits.memory", {"controller": {"resources": {"limits": {"memory": "1 Gi"}}}}),
    ("resources.requests.cpu", {"redis": {"resources": {"requests": {"cpu": "half"}}}}),
    ("storage", {"redis": {"storage": "1.2.3Gi"}}),
    ("env.0", {"gateway": {"env": [{"nam": "A", "value": "1"}]}}),
    ("env.0.value", {"gateway": {"env": [{"name": "A", "value": 1}]}}),
    ("env.0", {"gateway": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}}),
    ("secretKeyReff", {"controller": {"env": [{"name": "A", "valueFrom": {"secretKeyReff": {}}}]}}),
    ("key", {"pools": [{**POOL, "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "hf"}}}]}]}),
    ("volumes.0", {"gateway": {"volumes": [{"name": "a"}]}}),
    ("secrets", {"gateway": {"volumes": [{"name": "a", "secrets": {"secretName": "a"}}]}}),
    ("secretname", {"controller": {"volumes": [{"name": "a", "secret": {"secretname": "a"}}]}}),
    ("mountpath", {"gateway": {"volumeMounts": [{"name": "a", "mountpath": "/a"}]}}),
    ("nodeSelector.gpu", {"pools": [{**POOL, "nodeSelector": {"gpu": True}}]}),
    ("nodeSelector.gpu", {"redis": {"nodeSelector": {"gpu": "H 200"}}}),
    ("tolerations.0.operator", {"gateway": {"tolerations": [{"key": "a", "operator": "Exist"}]}}),
    ("efect", {"controller": {"tolerations": [{"key": "a", "efect": "NoSchedule"}]}}),
    ("key", {"redis": {"tolerations": [{}]}}),
    ("tolerations.0.value", {"redis": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}),
    ("maxUnavailable", {"pools": [{**POOL, "maxSurge": 0}]}),
    ("maxUnavailable", {"pools": [{**POOL, "maxSurge": 0, "maxUnavailable": 0}]}),
    ("maxUnavailable", {"pools": [{**POOL, "maxSurge": "0%", "maxUnavailable": "0%"}]}),
    ("maxUnavailable", {"pools": [{**POOL, "maxUnavailable": "101%"}]}),
    ("maxUnavailable", {"gateway": {"maxUnavailable": "50"}}),
]


@pytest.mark.parametrize(("name", "changes"), WRONG, ids=[f"{name}-{at}" for at, (name, _) in enumerate(WRONG)])
def test_a_wrong_value_is_refused_with_its_name(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError) as caught:
        jsonschema.validate(values(changes), SCHEMA)
    said = ".".join(str(part) for part in caught.value.absolute_path) + " " + caught.value.message
    assert name in said


def test_an_autoscaler_whose_least_is_above_its_most_is_refused_by_name() -> None:
    """A schema cannot compare two values: the template does."""
    bounds = {"enabled": True, "minReplicas": 11}
    with pytest.raises(ValueError, match=r"gateway\.autoscaling\.minReplicas is above .*maxReplicas"):
        render(values({"gateway": {"autoscaling": bounds}}))
    assert render(values({"gateway": {"autoscaling": {**bounds, "maxReplicas": 11}}}))


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (r"redis\.urlSecret", {"redis": {"urlSecret": "redis-url"}}),
        (r"redis\.caSecret", {"redis": {"caSecret": "redis-ca"}}),
        (r"redis\.tlsSecret", {"redis": {"enabled": False, "urlSecret": "u", "caSecret": "ca", "tlsSecret": "tls"}}),
        ("pools: two have the name h200", {"pools": [POOL, {**POOL, "model": "another"}]}),
        ("gateway.watch: vllm in default is there twice", {"gateway": {"watch": [{"service": "vllm"}] * 2}}),
        (
            "gateway.watch: vllm in default is there twice",
            {"gateway": {"watch": [{"service": "vllm"}, {"service": "vllm", "namespace": "default"}]}},
        ),
    ],
)
def test_values_that_exclude_each_other_are_refused_by_name(said: str, changes: dict[str, Any]) -> None:
    """They would be ignored, take one for the other, or render two objects of one name."""
    jsonschema.validate(values(changes), SCHEMA)
    with pytest.raises(ValueError, match=said):
        render(values(changes))


def test_services_of_one_name_in_two_namespaces_are_two() -> None:
    watch = [{"service": "vllm"}, {"service": "vllm", "namespace": "others"}]
    roles = [item for item in render(values({"gateway": {"watch": watch}})) if item["kind"] == "Role"]
    assert len(roles) == 2


def test_a_redis_of_ones_own_is_checked_by_its_own_authority() -> None:
    for item in render(values({**FULL, "pools": [POOL]})):
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            assert {"name": "redis-ca", "secret": {"secretName": "redis-ca"}} in pod["volumes"]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_node_can_be_drained_of_the_last_gateway_and_of_one_that_is_not_ready(replicas: int) -> None:
    budget = named(render(values({"gateway": {"replicas": replicas}})), "PodDisruptionBudget", "rel-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    assert "minAvailable" not in budget
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


PARTS_OF_PODS: dict[str, Any] = {
    "resources": {"limits": {"cpu": 2, "memory": "1.5Gi", "nvidia.com/gpu": "1"}, "requests": {}},
    "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
    "volumes": [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}]}},
        {"name": "c", "csi": {"driver": "secrets-store.csi.k8s.io", "readOnly": True}},
        {"name": "d", "secret": {"secretName": "a", "items": [{"key": "k", "path": "p"}], "defaultMode": 256}},
    ],
    "volumeMounts": [{"name": name, "mountPath": f"/{name}", "subPath": "p"} for name in "abcd"],
    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200", "empty": ""},
    "tolerations": [
        {"operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5},
    ],
}


def test_what_kubernetes_takes_of_a_pod_is_taken() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the extra `dev` brings it")
    given = values({"gateway": PARTS_OF_PODS, "controller": PARTS_OF_PODS})
    jsonschema.validate(given, SCHEMA)
    for manifest in render(given):
        validate.validate(manifest, "1.32", strict=True)


def leaves(found: Any, path: str = "") -> list[str]:
    if isinstance(found, Mapping) and found:
        return [leaf for key, item in found.items() for leaf in leaves(item, f"{path}.{key}".lstrip("."))]
    return [path]


def test_every_value_is_documented_and_in_the_schema_and_the_other_way_round() -> None:
    documented = set(re.findall(r"^\| `([\w.\[\]]+)` \|", PAGE, re.MULTILINE))
    stated = {path for path in leaves(values()) if path != "pools" and ".resources." not in path}
    stated |= {path.partition(".resources")[0] + ".resources" for path in leaves(values()) if ".resources." in path}
    stated |= {f"pools[].{name}" for name in SCHEMA["properties"]["pools"]["items"]["properties"]}
    assert documented == stated
    without = copy.deepcopy(values())
    jsonschema.validate(without, SCHEMA)


def containers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pods = [item["spec"]["template"]["spec"] for item in manifests if item["kind"] in ("Deployment", "StatefulSet")]
    return [container for pod in pods for container in pod["containers"]]


def test_the_programs_read_their_arguments_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for container in containers(render(values(FULL))):
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
            assert found.engine == ("k8s+http://rel-engine-h200:8000", "k8s+http://vllm.others")
        elif kind == "controller":
            read = load(ControllerSettings, "controller", arguments[1:])
            assert (read.interval_s, read.oidc_claim) == (1.0, "roles")
        else:
            ours, passed = _parser().parse_known_args(arguments)
            assert ours.advertise_url == "http://$(POD_IP):8000"
            assert int(ours.drain_timeout_s) > 0
            assert passed


def named(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name))


def test_a_number_that_is_0_is_0_and_what_is_left_out_has_its_default() -> None:
    asleep = {**POOL, "name": "asleep", "replicas": 0, "maxSurge": 0, "maxUnavailable": 1}
    manifests = render(values({"pools": [POOL, asleep]}))
    spec = named(manifests, "Deployment", "rel-engine-asleep")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]) == (0, {"maxSurge": 0, "maxUnavailable": 1})
    spec = named(manifests, "Deployment", "rel-engine-h200")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]) == (1, {"maxSurge": 1, "maxUnavailable": 0})


def test_gateways_have_their_metrics_on_a_port_that_no_service_offers() -> None:
    manifests = render(values({"gateway": {"service": {"type": "LoadBalancer"}}}))
    [gateway] = named(manifests, "Deployment", "rel-gateway")["spec"]["template"]["spec"]["containers"]
    [offered] = named(manifests, "Service", "rel-gateway")["spec"]["ports"]
    assert offered["targetPort"] == "http"
    ports = {item["name"]: item["containerPort"] for item in gateway["ports"]}
    assert ports == {"http": 8080, "admin": 8082}
    assert f"--admin-port={ports['admin']}" in gateway["args"]
    probes = [gateway[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {(probe["port"], probe["scheme"]) for probe in probes} == {("admin", "HTTP")}


def test_a_gateway_with_tls_is_probed_and_scraped_by_it() -> None:
    manifests = render(values(FULL))
    [gateway] = named(manifests, "Deployment", "rel-gateway")["spec"]["template"]["spec"]["containers"]
    probes = [gateway[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3
    [endpoint] = named(manifests, "PodMonitor", "rel-gateways")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    [endpoint] = named(render(values({"monitoring": {"podMonitor": True}})), "PodMonitor", "rel-gateways")["spec"][
        "podMetricsEndpoints"
    ]
    assert "scheme" not in endpoint


def test_prometheus_scrapes_each_pod_once_under_the_jobs_of_the_rules() -> None:
    manifests = render(values(FULL))
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "rules" / "specpilot.yml").read_text())
    [expression] = [rule["expr"] for rule in rules["groups"][0]["rules"] if rule.get("alert") == "SpecPilotPartDown"]
    [jobs] = re.findall(r'job=~"([^"]+)"', expression)
    monitors = [item for item in manifests if item["kind"] in ("PodMonitor", "ServiceMonitor")]
    scraped: list[str] = []
    for monitor in monitors:
        assert monitor["kind"] == "PodMonitor"  # a Service would not do: those of `gateway.watch` are others' too
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


def test_the_releases_own_redis_is_pulled_and_placed_like_the_rest() -> None:
    pod = named(render(values(OWN_REDIS)), "StatefulSet", "rel-redis")["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]


def test_the_releases_own_redis_speaks_tls_alone_and_everybody_asks_it_by_tls() -> None:
    manifests = render(values(OWN_REDIS))
    redis = named(manifests, "StatefulSet", "rel-redis")["spec"]["template"]["spec"]["containers"][0]
    assert redis["args"][redis["args"].index("--port") + 1] == "0"
    assert redis["args"][redis["args"].index("--tls-port") + 1] == str(redis["ports"][0]["containerPort"])
    for item in manifests:
        if item["kind"] != "Deployment":
            continue
        pod = item["spec"]["template"]["spec"]
        [container] = pod["containers"]
        [url] = [entry["value"] for entry in container["env"] if entry["name"] == "REDIS_URL"]
        assert url.startswith("rediss://")
        redis_url.parse(url.replace("$(REDIS_PASSWORD)", "p"))
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "redis-ca"]
        assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]  # the key stays with Redis
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "redis-ca"]
        assert f"ssl_ca_certs={mount['mountPath']}/ca.crt" in url


def test_pods_run_as_nobody_on_a_read_only_root_and_outlive_their_drain() -> None:
    for manifest in render(values(FULL)):
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


def test_a_gateway_that_watches_may_read_the_slices_it_names_and_nothing_else() -> None:
    manifests = render(values(FULL))
    by_kind = {kind: [item for item in manifests if item["kind"] == kind] for kind in ("Role", "RoleBinding")}
    assert [item["metadata"].get("namespace") for item in by_kind["Role"]] == [None, "others"]
    for role, binding in zip(*by_kind.values(), strict=True):
        rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
        assert role["rules"] == [rule]
        assert binding["metadata"] == role["metadata"]
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rel-gateway", "namespace": "default"}]
    [account] = [item for item in manifests if item["kind"] == "ServiceAccount"]
    gateway = next(item for item in manifests if item["kind"] == "Deployment" and "gateway" in item["metadata"]["name"])
    assert gateway["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    service = next(
        item for item in manifests if item["metadata"]["name"] == "rel-engine-h200" and item["kind"] == "Service"
    )
    engine = next(
        item for item in manifests if item["metadata"]["name"] == "rel-engine-h200" and item["kind"] == "Deployment"
    )
    assert service["spec"]["selector"].items() <= engine["spec"]["template"]["metadata"]["labels"].items()
    assert "ServiceAccount" not in {item["kind"] for item in render(values({"pools": [POOL]}))}


def test_engines_are_asked_by_gateways_controllers_and_monitoring_alone() -> None:
    manifests = render(values({"pools": [POOL]}))
    policy = next(
        item for item in manifests if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == "rel-engine"
    )
    engine = next(item for item in manifests if item["metadata"]["name"] == "rel-engine-h200")
    labels = engine["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["spec"]["ingress"]
    components = {
        source["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for source in rule["from"]
        if "podSelector" in source
    }
    assert components == {"gateway", "controller"}
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]


def test_secrets_come_by_reference_alone() -> None:
    for container in containers(render(values({"pools": [POOL]}))):
        for item in container.get("env", []):
            if "TOKEN" in item["name"] or "PASSWORD" in item["name"]:
                assert "secretKeyRef" in item["valueFrom"]
            elif item["name"] == "REDIS_URL":
                redis_url.parse(item["value"].replace("$(REDIS_PASSWORD)", "p"))


def test_the_plain_base_is_the_chart_with_its_defaults() -> None:
    """So that there is one truth: `deploy/kustomize/base` is made of the chart, see its kustomization."""
    folder = CHART.parents[1] / "kustomize" / "base"
    found = list(yaml.safe_load_all((folder / "specpilot.yaml").read_text()))
    assert found == render(values({"pools": [POOL]}), release="specpilot")
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["specpilot.yaml"]


def test_rules_and_dashboards_are_those_of_the_repository() -> None:
    for name in ("rules", "dashboards"):
        assert (CHART / "files" / name).resolve().is_dir()
    boards = [item for item in render(values(FULL)) if item["kind"] == "ConfigMap"]
    for board in boards:
        [(name, text)] = board["data"].items()
        assert json.loads(text) == json.loads((Path(CHART / "files" / "dashboards") / name).read_text())

"""Values of the chart: what is refused, by its name, and what is taken as it is."""

from typing import Any

import pytest

from tests.support.chart import POOL, helm, named, render

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gatway", {"gatway": {}}),
    ("replicas", {"gateway": {"replicas": 0}}),
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
    with pytest.raises(helm.HelmValuesError) as caught:
        render(changes)
    assert name in str(caught.value).replace("/", ".")  # it writes env/0 for env.0


def test_an_autoscaler_whose_least_is_above_its_most_is_refused_by_name() -> None:
    """A schema cannot compare two values: the template does."""
    bounds = {"enabled": True, "minReplicas": 11}
    with pytest.raises(helm.HelmRenderError, match=r"gateway\.autoscaling\.minReplicas is above .*maxReplicas"):
        render({"gateway": {"autoscaling": bounds}})
    assert render({"gateway": {"autoscaling": {**bounds, "maxReplicas": 11}}})


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        (r"redis\.urlSecret", {"redis": {"urlSecret": "redis-url"}}),
        (r"redis\.caSecret", {"redis": {"caSecret": "redis-ca"}}),
        (r"redis\.tlsSecret", {"redis": {"enabled": False, "urlSecret": "u", "caSecret": "ca", "tlsSecret": "tls"}}),
        ("pools: two have the name h200", {"pools": [POOL, {**POOL, "model": "another"}]}),
    ],
)
def test_values_that_exclude_each_other_are_refused_by_name(said: str, changes: dict[str, Any]) -> None:
    """They would be ignored, take one for the other, or render two objects of one name."""
    with pytest.raises(helm.HelmRenderError, match=said):
        render(changes)


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
    for manifest in render({"gateway": PARTS_OF_PODS, "controller": PARTS_OF_PODS}):
        validate.validate(manifest, "1.32", strict=True)


def test_a_number_that_is_0_is_0_and_what_is_left_out_has_its_default() -> None:
    asleep = {**POOL, "name": "asleep", "replicas": 0, "maxSurge": 0, "maxUnavailable": 1}
    manifests = render({"pools": [POOL, asleep]})
    spec = named(manifests, "Deployment", "rel-engine-asleep")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]) == (0, {"maxSurge": 0, "maxUnavailable": 1})
    spec = named(manifests, "Deployment", "rel-engine-h200")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]) == (1, {"maxSurge": 1, "maxUnavailable": 0})

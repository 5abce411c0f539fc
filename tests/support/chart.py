"""The chart as Helm itself checks and renders it, values for its tests from none to all, and parts of manifests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="the extra `dev` brings it, where there is a build of it")

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "specpilot"
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


def render(values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Every manifest of the release `rel`, with `values` merged into the chart's as `--values` does.

    Raises `HelmValuesError` where the schema refuses them, `HelmRenderError` where a template does.
    """
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(dict(values or {}), name="rel", namespace="default")
    return [item for name in sorted(texts) for item in yaml.safe_load_all(texts[name]) if item is not None]


def containers(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pods = [item["spec"]["template"]["spec"] for item in manifests if item["kind"] in ("Deployment", "StatefulSet")]
    return [container for pod in pods for container in pod["containers"]]


def named(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name))

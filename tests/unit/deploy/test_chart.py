"""The chart as a whole: rendered in every shape, valid for Kubernetes, documented, the source of the plain base."""

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.chart import CHART, FULL, OWN_REDIS, POOL, render
from tests.support.custom_resources import SCHEMAS as CUSTOM

PAGE = (CHART.parents[2] / "docs" / "get-started" / "kubernetes.md").read_text()
SHAPES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one pool": {"pools": [POOL]},
    "own Redis with TLS": OWN_REDIS,
    "full": FULL,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_manifest_is_valid_for_kubernetes(shape: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the extra `dev` brings it")
    manifests = render(SHAPES[shape])
    assert len(manifests) > 8
    for manifest in manifests:
        if manifest["kind"] in CUSTOM:
            jsonschema.validate(manifest, CUSTOM[manifest["kind"]])
        else:
            validate.validate(manifest, "1.32", strict=True)


def test_everything_that_can_be_asked_for_is_there() -> None:
    kinds = [item["kind"] for item in render(FULL)]
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Ingress", "HTTPRoute", "NetworkPolicy"} <= set(kinds)
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= set(kinds)
    assert kinds.count("Deployment") == 4
    assert "StatefulSet" not in kinds
    names = [(item["kind"], item["metadata"]["name"]) for item in render(FULL)]
    assert len(names) == len(set(names))


def leaves(found: Any, path: str = "") -> list[str]:
    if isinstance(found, Mapping) and found:
        return [leaf for key, item in found.items() for leaf in leaves(item, f"{path}.{key}".lstrip("."))]
    return [path]


def test_every_value_is_documented_and_in_the_schema_and_the_other_way_round() -> None:
    cells = re.findall(r"^\| (`[^|]+) \|", PAGE.split("\n## Values\n")[1], re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    defaults = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    schema = json.loads((CHART / "values.schema.json").read_text())
    stated = {path for path in defaults if path != "pools" and ".resources." not in path}
    stated |= {path.partition(".resources")[0] + ".resources" for path in defaults if ".resources." in path}
    stated |= {f"pools[].{name}" for name in schema["properties"]["pools"]["items"]["properties"]}
    assert documented == stated

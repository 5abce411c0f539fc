"""The chart as a whole: rendered in every shape, valid for Kubernetes, documented, the source of the plain base."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest

from tests.support.chart_values import FULL, OWN_REDIS, POOL, SCHEMA
from tests.support.custom_resources import SCHEMAS as CUSTOM
from tests.support.helm_template import CHART, render, values

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
    given = values(SHAPES[shape])
    jsonschema.validate(given, SCHEMA)
    manifests = render(given)
    assert len(manifests) > 8
    for manifest in manifests:
        if manifest["kind"] in CUSTOM:
            jsonschema.validate(manifest, CUSTOM[manifest["kind"]])
        else:
            validate.validate(manifest, "1.32", strict=True)


def test_everything_that_can_be_asked_for_is_there() -> None:
    kinds = [item["kind"] for item in render(values(FULL))]
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget", "Ingress", "HTTPRoute", "NetworkPolicy"} <= set(kinds)
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= set(kinds)
    assert kinds.count("Deployment") == 4
    assert "StatefulSet" not in kinds
    names = [(item["kind"], item["metadata"]["name"]) for item in render(values(FULL))]
    assert len(names) == len(set(names))


def leaves(found: Any, path: str = "") -> list[str]:
    if isinstance(found, Mapping) and found:
        return [leaf for key, item in found.items() for leaf in leaves(item, f"{path}.{key}".lstrip("."))]
    return [path]


def test_every_value_is_documented_and_in_the_schema_and_the_other_way_round() -> None:
    cells = re.findall(r"^\| (`[^|]+) \|", PAGE.split("\n## Values\n")[1], re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    stated = {path for path in leaves(values()) if path != "pools" and ".resources." not in path}
    stated |= {path.partition(".resources")[0] + ".resources" for path in leaves(values()) if ".resources." in path}
    stated |= {f"pools[].{name}" for name in SCHEMA["properties"]["pools"]["items"]["properties"]}
    assert documented == stated
    without = copy.deepcopy(values())
    jsonschema.validate(without, SCHEMA)

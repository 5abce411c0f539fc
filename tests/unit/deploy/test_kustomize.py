"""The kustomize base and its overlay: what the overlay changes is there, and what `kubectl` makes of both is valid."""

import re
import shutil
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kustomize"
BASE: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "base" / "specpilot.yaml").read_text()))
OVERLAY: dict[str, Any] = yaml.safe_load((FOLDER / "example" / "kustomization.yaml").read_text())
KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl (Debian: kubernetes-client)")


def built(name: str) -> list[dict[str, Any]]:
    command = [str(KUBECTL), "kustomize", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def named(manifests: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [item for item in manifests if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


def test_each_patch_of_the_overlay_has_an_object_of_the_base_and_a_place_in_it() -> None:
    assert OVERLAY["resources"] == ["../base"]
    assert OVERLAY["patches"]
    for patch in OVERLAY["patches"]:
        target = named(BASE, patch["target"]["kind"], patch["target"]["name"])
        for change in yaml.safe_load(patch["patch"]):
            *parents, last = change["path"].strip("/").replace("~1", "/").split("/")
            parent = reduce(lambda found, key: found[key], parents, target)
            assert change["op"] == "add" or last in parent


def test_what_the_overlay_counts_and_pulls_is_in_the_base() -> None:
    for item in OVERLAY["replicas"]:
        assert named(BASE, "Deployment", item["name"])["spec"]["replicas"] > 0
    pulled = {image.rpartition(":")[0] for image in re.findall(r"'image': '([^']+)'", str(BASE))}
    assert {item["name"] for item in OVERLAY["images"]} <= pulled


@needs_kubectl
@pytest.mark.parametrize("name", ["base", "example"])
def test_kubectl_builds_it_and_every_manifest_is_valid(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="the extra `dev` brings it")
    manifests = built(name)
    assert len(manifests) == len(BASE)
    for manifest in manifests:
        validate.validate(manifest, "1.32", strict=True)


@needs_kubectl
def test_the_overlay_changes_what_it_says() -> None:
    engine = named(built("example"), "Deployment", "specpilot-engine-h200")
    assert engine["metadata"]["namespace"] == "models"
    assert engine["spec"]["replicas"] == 2
    pod = engine["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert pod["containers"][0]["image"] == "registry.example.com/specpilot-engine:0.1.0"

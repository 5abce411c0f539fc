"""The compose file: its files are there, its programs read their arguments, one port alone faces other machines."""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
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

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
EXAMPLE = dict(
    line.split("=", 1) for line in (FOLDER / "env.example").read_text().splitlines() if not line.startswith("#")
)


def expanded(text: str) -> str:
    return re.sub(r"(?<!\$)\$\{(\w+):-([^}]*)\}", lambda found: EXAMPLE.get(found[1]) or found[2], text)


SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(expanded(TEXT))["services"]


def test_every_variable_has_a_default_and_is_in_the_example() -> None:
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", TEXT)) == set(EXAMPLE)


def test_it_is_valid_by_the_specification_of_compose() -> None:
    found = find_spec("check_jsonschema")  # it is not imported: nothing but the specification's schema is wanted of it
    if found is None or found.origin is None:
        pytest.skip("the extra `dev` brings it")
    schema = json.loads((Path(found.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    document = yaml.safe_load(expanded(TEXT))
    jsonschema.validate(document, schema)
    document["services"]["redis"]["volume"] = []
    with pytest.raises(jsonschema.ValidationError, match="'volume' was unexpected"):
        jsonschema.validate(document, schema)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (Debian: haproxy)")
def test_haproxy_takes_its_configuration() -> None:
    command = ["haproxy", "-c", "-f", str(FOLDER / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_takes_its_configuration_with_the_rules(tmp_path: Path) -> None:
    rules = FOLDER.parent / "prometheus" / "rules"
    text = (FOLDER / "prometheus.yml").read_text()
    assert "../prometheus/rules:/etc/prometheus/rules:ro" in SERVICES["prometheus"]["volumes"]
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/rules", str(rules)))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_there_are_two_gateways_two_controllers_and_engines_by_profile() -> None:
    assert {"gateway-1", "gateway-2", "controller-1", "controller-2", "redis", "load-balancer"} <= set(SERVICES)
    assert SERVICES["engine-cpu"]["profiles"] == ["cpu"]
    assert SERVICES["engine-gpu"]["profiles"] == ["gpu"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_builds_from_and_waits_for_exists(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
    if "build" in service:
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert set(service.get("depends_on", [])) <= set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_the_programs_read_their_arguments_and_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    for variable, value in service.get("environment", {}).items():
        monkeypatch.setenv(variable, value or "")
        if variable == "REDIS_URL":
            assert redis_url.parse(value).hosts == (("redis", 6379),)
    if name.startswith("gateway"):
        assert load(GatewaySettings, name, service["command"][1:]).drain_grace_s == 3.0
    elif name.startswith("controller"):
        assert load(ControllerSettings, name, service["command"][1:]).admin_token is not None
    elif name.startswith("engine"):
        ours, _ = _parser().parse_known_args(service["command"])
        assert ours.advertise_url == f"http://{name}:8000"


def test_engines_may_run_what_they_compile_into_tmp() -> None:
    """Docker mounts a bare tmpfs noexec, and a library there cannot be loaded."""
    for name, service in SERVICES.items():
        if name.startswith("engine"):
            for mount in service["tmpfs"]:
                assert "exec" in mount.partition(":")[2].split(","), (name, mount)


@pytest.mark.parametrize("page", ["get-started/compose.md", "how-to/upgrade.md"])
def test_what_is_replaced_is_back_before_the_next_is(page: str) -> None:
    """`up` alone returns when the container has started; the load balancer then has a second to find its address."""
    text = (FOLDER.parents[1] / "docs" / page).read_text()
    commands = re.findall(r"`([^`]*up -d [^`]*--no-deps[^`]*)`", text)
    assert commands
    assert all("--wait" in command for command in commands)
    assert re.findall(r"hold valid (\S+)", (FOLDER / "haproxy.cfg").read_text()) == ["1s"]


def test_only_the_load_balancer_can_face_other_machines() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:") or name == "load-balancer"
    assert [name for name, service in SERVICES.items() if "${PORT" in str(service.get("ports"))] == []


def test_the_load_balancer_and_prometheus_know_each_service() -> None:
    proxy = (FOLDER / "haproxy.cfg").read_text()
    assert set(re.findall(r"^    server \S+ (\S+):8080", proxy, re.MULTILINE)) == {"gateway-1", "gateway-2"}
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    names = {(name, item["port"]) for job in scraped for item in job["dns_sd_configs"] for name in item["names"]}
    ports = {"engine": 8000, "gateway": 8082, "controller": 8081}
    expected = {(name, ports[name.partition("-")[0]]) for name in SERVICES if name.partition("-")[0] in ports}
    assert names == expected


def test_what_the_load_balancer_asks_of_gateways_has_no_metrics() -> None:
    """`PORT=0.0.0.0:8080` opens it to other machines."""
    for name in ("gateway-1", "gateway-2"):
        found = load(GatewaySettings, name, [*SERVICES[name]["command"][1:], "--redis-url", "redis://r"])
        assert (found.port, found.admin_port) == (8080, 8082)
        assert "ports" not in SERVICES[name]


def test_an_engines_target_has_the_label_of_its_pool() -> None:
    jobs = {job["job_name"]: job for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]}
    [relabelling] = jobs["specpilot-engines"]["relabel_configs"]
    assert (relabelling["source_labels"], relabelling["target_label"]) == (["__meta_dns_name"], "pool")
    for name, service in SERVICES.items():
        if name.startswith("engine"):
            found = re.fullmatch(relabelling["regex"], name)
            assert found is not None
            assert found[1] == service["command"][service["command"].index("--pool") + 1]


def test_a_gateway_may_drain_longer_than_it_drains() -> None:
    for name, service in SERVICES.items():
        if name.startswith("gateway"):
            found = load(GatewaySettings, name, [*service["command"][1:], "--redis-url", "redis://r"])
            assert int(service["stop_grace_period"].rstrip("s")) > found.drain_grace_s + found.drain_timeout_s

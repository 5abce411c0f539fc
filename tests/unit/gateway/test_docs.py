"""The gateway's page and its code say the same."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import all_errors
from gateway.intake import PROXIED
from gateway.metrics import HELP, PREFIX
from gateway.otel import FIRST_TOKEN
from gateway.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "gateway.md").read_text()
COUNTERS = {
    "requests",
    "output_tokens",
    "choices",
    "retries",
    "upstream_errors",
    "disconnects",
    "refusals",
    "unknown_class",
    "log_lines_dropped",
    "spans",
}
PURE = (
    *("limits", "wire", "sse", "framing", "heads", "classify", "snapshot", "errors"),
    *("routing", "affinity", "prefix", "choice", "tally", "supervision", "fair_queue", "admission", "rate"),
)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_settings() -> None:
    documented = {row[0].strip("`").removeprefix("--").replace("-", "_"): row[1].strip("`") for row in rows("Settings")}
    assert set(documented) == set(GatewaySettings.model_fields)
    for name, field in GatewaySettings.model_fields.items():
        default = field.default
        if default is not None and default != ():
            shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
            shown = f"{shown:g}" if isinstance(shown, float) else str(shown)
            assert documented[name] == shown, name


def test_metrics() -> None:
    documented = {row[0].strip("`") for row in rows("Metrics")}
    assert documented == {f"{PREFIX}{name}{'_total' if name in COUNTERS else ''}" for name in HELP}


def test_errors() -> None:
    documented = {(row[0].strip("`"), int(row[1])) for row in rows("Errors") if row[0] != "`engine_error`"}
    assert documented == {(error.code, error.status) for error in all_errors()}


def test_routes() -> None:
    documented = {row[0].strip("`") for row in rows("Routes")}
    assert {f"POST {path}" for path in PROXIED} <= documented
    others = {item.split(" ")[1] for item in documented} - PROXIED
    assert others == {"/health", "/ping", "/ready", "/metrics", "/v1/models", "/v1/models/{name}", "/admin/config"}


def test_headers() -> None:
    source = "".join((ROOT / "gateway" / f"{name}.py").read_text() for name in ("heads", "exchange", "relay"))
    known = r"x-specpilot-[a-z-]+|x-request-id|x-traffic-class|x-session-id|x-ratelimit-[a-z]+-(?:requests|tokens)"
    named = set(re.findall(known, source))
    assert named == {row[0].strip("`") for row in rows("Headers")}


def test_access_log() -> None:
    source = (ROOT / "gateway" / "record.py").read_text() + (ROOT / "gateway" / "plane.py").read_text()
    logged = set(re.findall(r'"([a-z_]+)": ', source)) | set(re.findall(r'\{"([a-z_]+)": round', source))
    assert logged == {row[0].strip("`") for row in rows("Access log")}


def test_attributes_of_spans() -> None:
    source = (ROOT / "gateway" / "otel.py").read_text()
    named = set(re.findall(r'"((?:http|url|error|gen_ai|specpilot)\.[a-z_.]+)"', source))
    assert named - {"specpilot.gateway", FIRST_TOKEN} == {row[0].strip("`") for row in rows("Tracing")}
    assert f"`{FIRST_TOKEN}`" in section("Tracing")


@pytest.mark.parametrize("module", PURE)
def test_what_decides_brings_in_no_framework(module: str) -> None:
    forbidden = ("uvicorn", "fastapi", "prometheus_client", "redis")
    code = f"import sys, gateway.{module}; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", PURE)
def test_nor_reads_a_clock_or_a_socket(module: str) -> None:
    source = (ROOT / "gateway" / f"{module}.py").read_text()
    imported = set(re.findall(r"^(?:import|from) ([a-z_]+)", source, re.MULTILINE))
    assert not imported & {"asyncio", "time", "random", "os", "socket", "logging", "threading", "uvicorn", "fastapi"}

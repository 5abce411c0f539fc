"""The gateway's pages and its code say the same."""

import re
from pathlib import Path

from specpilot.gateway.settings import GatewaySettings
from specpilot.gateway.telemetry.metrics import GatewayMetrics, exposition_of
from specpilot.gateway.telemetry.otel import FIRST_TOKEN
from specpilot.gateway.telemetry.recorder import COMMON
from specpilot.gateway.wire.errors import GatewayError
from specpilot.gateway.wire.heads import SESSION_HEADERS
from specpilot.gateway.wire.origins import EXPOSED
from specpilot.gateway.wire.routes import PROXIED, method_of

ROOT = Path(__file__).resolve().parents[3]
PAGES = "".join(page.read_text() for page in (ROOT / "docs" / "reference" / "gateway").glob("*.md"))


def section(title: str) -> str:
    return PAGES.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(title: str) -> set[str]:
    """The names in the first cells of a table: a row may state the same of several."""
    return {name for row in rows(title) for name in re.findall(r"`([^`]+)`", row[0])}


def source_of(module: str) -> str:
    return (ROOT / "gateway" / f"{module}.py").read_text()


def test_settings() -> None:
    documented = {row[0].strip("`").removeprefix("--").replace("-", "_"): row[1].strip("`") for row in rows("Flags")}
    assert set(documented) == set(GatewaySettings.model_fields)
    for name, field in GatewaySettings.model_fields.items():
        default = field.default
        if default is not None and default != ():
            shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
            shown = f"{shown:g}" if isinstance(shown, float) else str(shown)
            assert documented[name] == shown, name


def test_metrics() -> None:
    documented = {row[0].strip("`") for row in rows("Metrics")}
    assert documented == set(
        re.findall(r"^# TYPE (\w+) ", exposition_of(b"[%s]" % GatewayMetrics().tally()).decode(), re.MULTILINE)
    )


def test_errors() -> None:
    documented = {(row[0].strip("`"), int(row[1])) for row in rows("Errors") if row[0] != "`engine_error`"}
    assert documented == {(error.code, error.status) for error in GatewayError.__subclasses__()}


def test_routes() -> None:
    documented = names("Routes")
    assert {f"{method_of(path)} {path}" for path in PROXIED} <= documented
    others = {item.split(" ")[1] for item in documented} - PROXIED
    assert others == {"/health", "/ping", "/ready", "/metrics", "/v1/models", "/v1/models/{name}", "/admin/config"}


def test_headers() -> None:
    source = "".join(
        source_of(name) for name in ("wire/heads", "relay/engine_request", "relay/exchange", "relay/relay")
    )
    known = r"x-specpilot-[a-z-]+|x-request-id|x-traffic-class|x-vllm-priority|x-ratelimit-[a-z]+-(?:requests|tokens)"
    named = {*re.findall(known, source), *(name.decode() for name in SESSION_HEADERS), *EXPOSED}
    assert named - {"retry-after"} == names("Headers")


def test_access_log() -> None:
    logged = re.findall(r'"([a-z_]+)":%s', source_of("telemetry/recorder"))
    assert {*logged, *COMMON} == names("Access log")


def test_attributes_of_spans() -> None:
    source = source_of("telemetry/otel")
    named = set(re.findall(r'"((?:http|url|error|gen_ai|specpilot)\.[a-z_.]+)"', source))
    assert named - {"specpilot.gateway", FIRST_TOKEN} == names("Tracing")
    assert f"`{FIRST_TOKEN}`" in section("Tracing")

"""Each pure module, imported in a fresh interpreter, brings in nothing that reads a clock, a socket or a framework."""

import subprocess
import sys

import pytest

FORBIDDEN = ("redis", "fastapi", "aiohttp", "vllm", "torch", "uvicorn", "prometheus_client")
PURE = (
    "policy.types",
    "policy.canary",
    "policy.codec",
    "policy.keys",
    "policy.engine_metrics",
    "engine_adapter.apply",
    "engine_adapter.plan",
    "engine_adapter.vllm_source",
    "engine_adapter.reliance",
    "engine_adapter.measure",
    *(
        f"gateway.{name}"
        for name in (
            *("wire", "sse", "framing", "heads", "classify", "limits", "snapshot", "errors"),
            *("routing", "affinity", "prefix", "choice", "tally", "supervision", "fair_queue", "admission", "rate"),
        )
    ),
    "controller.pilot",  # brings in every module that decides
    "controller.pools",
    "controller.conduct",
    "controller.record",
    "controller.narrate",
)


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_no_framework(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

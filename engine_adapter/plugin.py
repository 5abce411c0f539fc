"""vLLM's general plugin, loaded by every process of an engine.

vLLM loads it if the package is installed. It does nothing unless `VLLM_PLUGINS` names the adapter
(`plugin_names`), and nothing in an untested version of vLLM, in which an engine that speculates refuses to start.

The plugin completes the engine's arguments (`vllm.engine_args`). It installs the wrappers of vLLM's runner and
drafters, the repairs for CPUs and the query for CUDA graphs. It adds the methods that the API server calls to
`EngineCore`. K is chosen in the scheduler (`vllm.scheduler`), which
passes each step to `plan.planner`.
"""

from pydantic import ValidationError

from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.agent import core_methods
from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import versions


def register() -> None:
    """Entry point `vllm.general_plugins`; harmless when called again."""
    if not plugin_names.is_switched_on():
        return
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - vLLM imports this module while it starts

    setattr(EngineCore, core_methods.STATE_METHOD, core_methods.state)
    setattr(EngineCore, core_methods.APPLY_METHOD, core_methods.apply)
    setattr(EngineCore, core_methods.DRAIN_METHOD, core_methods.drain)
    from specpilot.engine_adapter.vllm import engine_args  # noqa: PLC0415 - as above

    engine_args.install()
    if not _is_fit():
        return
    from specpilot.engine_adapter.vllm import (  # noqa: PLC0415 - import torch
        graph_record,
        parameters,
    )
    from specpilot.engine_adapter.vllm.v1 import cpu_sampling  # noqa: PLC0415 - as above
    from specpilot.engine_adapter.vllm.v1 import installation as of_v1  # noqa: PLC0415 - as above

    cpu_sampling.install()
    of_v1.install()
    graph_record.install()
    parameters.install()
    if _may_run_v2():
        from specpilot.engine_adapter.vllm.v2 import installation as of_v2  # noqa: PLC0415 - as above

        of_v2.install()


def _may_run_v2() -> bool:
    """Whether this vLLM may run its model runner V2, which needs Triton, and the adapter supports that runner."""
    from vllm.triton_utils import HAS_TRITON  # noqa: PLC0415 - imports torch

    return HAS_TRITON and versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2)


def _is_fit() -> bool:
    """Whether this vLLM may be changed; not if its version is unknown."""
    try:
        return AdapterSettings().any_vllm or versions.is_among(versions.vllm_version(), versions.ACCEPTED)
    except (UnsupportedEngineError, ValidationError):
        return False

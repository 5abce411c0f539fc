"""Completes vLLM's arguments and configuration for an engine with the adapter.

With the adapter in `VLLM_PLUGINS`, `vllm serve MODEL --speculative-config '{...}'` needs no further flag. Before vLLM
makes its configuration of the arguments, the ones that the user left out are filled: the number format on a CPU, the
largest CUDA graph, the runner, the metrics of each request. Afterwards the configuration gets the adapter's scheduler,
unless the user named another one: the synchronous one where attention is exact only with it. Parallelism that the
adapter does not steer is rejected here, because a data-parallel rank does not see all of it.
"""

import atexit
import logging
import os
import shutil
import tempfile
from functools import cache, wraps
from typing import Any

from specpilot.engine_adapter import graph_size, number_format
from specpilot.engine_adapter.agent.export import FOLDER
from specpilot.engine_adapter.errors import InvalidSettingsError, UnsupportedEngineError
from specpilot.engine_adapter.model_files import model_config
from specpilot.engine_adapter.vllm import compat, config_facts, data_parallel, stated_engine, versions

SYNC_SCHEDULER = "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler"
ASYNC_SCHEDULER = "specpilot.engine_adapter.vllm.scheduler.SpecPilotAsyncScheduler"

logger = logging.getLogger("vllm.specpilot")


@cache
def install() -> None:
    """Make vLLM's `EngineArgs` do so, once in this process."""
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - this plugin is loaded while vLLM imports it

    create = EngineArgs.create_engine_config

    @wraps(create)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        complete(self)
        vllm_config = create(self, *args, **kwargs)
        set_scheduler(vllm_config, asks_async=self.async_scheduling is not None)
        is_steered = vllm_config.scheduler_config.scheduler_cls in (SYNC_SCHEDULER, ASYNC_SCHEDULER)
        if is_steered and vllm_config.speculative_config is not None:
            compat.check_parallel(vllm_config)
        return vllm_config

    EngineArgs.create_engine_config = create_engine_config


def complete(args: Any) -> None:
    """Fill the arguments that the user left out, and set the variables that vLLM's processes inherit."""
    if args.dtype == number_format.AUTO and args.quantization is None:
        args.dtype = number_format.fitting(args.model)
    _share_metrics()
    data_parallel.share_size(args.data_parallel_size)
    speculative = _speculation(args)
    if not speculative:
        return
    if args.per_request_spec_decode_metrics == "none":
        args.per_request_spec_decode_metrics = "summary"
    if not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2):
        os.environ.setdefault(versions.RUNNER, "0")
    if _has_cuda() and not _has_graph_sizes(args):
        k_max = speculative.get("num_speculative_tokens")
        args.max_cudagraph_capture_size = graph_size.capture_size(args.max_num_seqs, k_max)


def set_scheduler(vllm_config: Any, *, asks_async: bool = False) -> None:
    """Give an engine that speculates the adapter's scheduler of its loop, unless its user named a scheduler.

    `asks_async`: the user chose the loop.
    """
    scheduler = vllm_config.scheduler_config
    if vllm_config.speculative_config is None or scheduler.scheduler_cls is not None:
        return
    if scheduler.async_scheduling and not asks_async:
        backend = _mla_backend(vllm_config)
        if backend is not None and compat.attention_fault([[backend]], is_async=True) is not None:
            scheduler.async_scheduling = False
            logger.warning("SpecPilot: %s", compat.synchronous_note(backend.get_name()))
    scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SYNC_SCHEDULER


def _mla_backend(vllm_config: Any) -> Any:
    """Return the attention backend that vLLM will choose for a model with MLA; `None`: other attention, or not known.

    What is not known here is checked when it is loaded (`compat.attention_fault`).
    """
    model = vllm_config.model_config
    if not config_facts.uses_mla(model):
        return None
    from vllm.config import set_current_vllm_config  # noqa: PLC0415 - as in `install`
    from vllm.v1.attention.selector import get_attn_backend  # noqa: PLC0415 - as above

    try:
        with set_current_vllm_config(vllm_config):
            return get_attn_backend(
                model.get_head_size(),
                model.dtype,
                vllm_config.cache_config.cache_dtype,
                use_mla=True,
                use_sparse=hasattr(model.hf_text_config, "index_topk"),
                num_heads=model.get_num_attention_heads(vllm_config.parallel_config),
            )
    except (AssertionError, AttributeError, ImportError, TypeError, ValueError):
        return None


def _speculation(args: Any) -> dict[str, Any]:
    """Return what the arguments state of speculation: as JSON, or by vLLM's short flags (`--spec-model` and so on).

    A model that is a head in the format of `speculators` (`vllm serve HEAD`) states it in its own configuration.
    """
    short = {name: getattr(args, flag.replace("-", "_"), None) for name, flag in stated_engine.SHORT_FLAGS.items()}
    stated = {name: value for name, value in short.items() if value is not None} | dict(args.speculative_config or {})
    return stated if "model" in stated else _of_head(args.model) | stated


def _of_head(model: str) -> dict[str, Any]:
    """Return what a head states of speculation; empty for another model, and for one that cannot be read."""
    try:
        config = model_config(model)
        return stated_engine.by_its_head(config) if config.get("speculators_config") else {}
    except InvalidSettingsError:
        return {}  # vLLM says what is wrong with it


def _share_metrics() -> None:
    """Make the folder in which the engine's processes leave their pages of metrics for the server."""
    if os.environ.get(FOLDER):
        return
    try:
        folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="specpilot-metrics-")
    except OSError as error:
        raise UnsupportedEngineError(
            f"no folder for metrics can be made ({error.strerror}): set TMPDIR to a folder that can be written"
        ) from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _has_graph_sizes(args: Any) -> bool:
    """Whether the user set the sizes of CUDA graphs, or their mode, or has none."""
    compilation = args.compilation_config
    return bool(
        args.enforce_eager
        or args.max_cudagraph_capture_size
        or args.cudagraph_capture_sizes
        or compilation.max_cudagraph_capture_size
        or compilation.cudagraph_capture_sizes
        or compilation.cudagraph_mode is not None
        or compilation.mode is not None
    )


def _has_cuda() -> bool:
    from vllm.platforms import current_platform  # noqa: PLC0415 - detects the platform when it is first used

    return bool(current_platform.is_cuda())

"""Facts about an engine from vLLM's configuration: its drafter, the room of its steps, the size of its backlog."""

from collections.abc import Sequence
from copy import copy
from pkgutil import resolve_name
from typing import Any

from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.plan.step_room import StepRoom
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import config_facts
from specpilot.engine_adapter.vllm.config_facts import STEERABLE_METHODS, has_block
from specpilot.engine_adapter.vllm.data_parallel import in_lockstep

_MIB = 1 << 20
_READ_SEVERAL = ("eagle3", "dflash")
"""Methods whose heads read the states of several layers, and may have a backlog."""
_STATES = 3
"""Layers of the target that such a head reads if its configuration does not name them."""


def backlog_rows(vllm_config: Any) -> int:
    """Return the number of rows that may wait for the drafter (`plan.catch_up`); 0: it runs in every step."""
    speculative = vllm_config.speculative_config
    if speculative is None or config_facts.of_engine(vllm_config).why_in_every_step is not None:
        return 0
    row_bytes = row_size(vllm_config) * vllm_config.model_config.dtype.itemsize
    return max(1, int(AdapterSettings().backlog_mib * _MIB / row_bytes))


def reads_every_step(vllm_config: Any) -> bool:
    """Whether the drafter itself reads every step, also one without drafts, so that nothing is kept for it.

    vLLM's speculators of model runner V2 do, if they have no backlog. V1's drafters and the adapter's P-EAGLE on V2 do
    not run in a step of width 0.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not vllm_config.use_v2_model_runner or backlog_rows(vllm_config):
        return False
    method, is_parallel = speculative.method, speculative.parallel_drafting
    return method not in STEERABLE_METHODS or has_block(method) or not is_parallel


def row_size(vllm_config: Any) -> int:
    """Return how many numbers of the target's hidden states the drafter reads at a position.

    vLLM's rule: for EAGLE-3 and DFlash the layers that the head's configuration names, else three; for EAGLE and MTP
    the last layer. (An MTP head with a wider state is in no list of heads that catch up.) Model runner V2 finds their
    names in two more fields (`get_eagle3_aux_layers_from_config`).
    """
    speculative = vllm_config.speculative_config
    head = speculative.draft_model_config.hf_config
    fields = getattr(head, "dflash_config" if speculative.method == "dflash" else "eagle_config", None) or {}
    states = 1
    if speculative.method in _READ_SEVERAL and fields.get("use_aux_hidden_state", True):
        named = getattr(head, "eagle_aux_hidden_state_layer_ids", None)
        named = named or fields.get("eagle_aux_hidden_state_layer_ids") or fields.get("target_layer_ids")
        if vllm_config.use_v2_model_runner:
            named = named or getattr(head, "target_layer_ids", None) or fields.get("layer_ids")
        states = len(named or ()) or _STATES
    return states * int(vllm_config.model_config.get_hidden_size())


def states_stay(vllm_config: Any, device_type: str) -> bool:
    """Whether the target's states of a step stay unchanged, so that they may be read some steps later.

    On a CPU they do. A CUDA graph overwrites its outputs with the next replay. For a model with embeddings as input,
    the state before the first layer is vLLM's input buffer.
    """
    model = vllm_config.model_config
    return device_type == "cpu" and not (model.is_multimodal_model or model.enable_prompt_embeds)


def step_room(vllm_config: Any) -> StepRoom:
    """Return the size of vLLM's step.

    Versions of vLLM that reserve no slots while they schedule have already subtracted the slots of `max_num_seqs`
    requests from `tokens`.
    """
    scheduler, speculative = vllm_config.scheduler_config, vllm_config.speculative_config
    positions = scheduler.max_num_batched_tokens
    tokens = getattr(scheduler, "max_num_scheduled_tokens", None) or positions
    is_parallel = bool(getattr(speculative, "parallel_drafting", False))
    return StepRoom(tokens, positions, is_parallel, block(vllm_config), _block_slots(vllm_config))


def _block_slots(vllm_config: Any) -> int:
    """Return the slots that vLLM keeps for a request in a step, beside its tokens, for a block; 0: there is none.

    vLLM 0.32 keeps K_max. The block's positions have buffers beside those of the step's tokens, so where the plan
    sees to it that all blocks fit into these (`plan.step_room`), the least number is kept.
    """
    if not block(vllm_config):
        return 0
    return 1 if backlog_rows(vllm_config) else int(vllm_config.num_speculative_tokens)


def block(vllm_config: Any) -> int:
    """Return the positions of a request's block; 0: the drafter has none.

    They are K_max tokens and the one before them; a DSpark head may draft at the place of that one too
    (`DSparkSpeculator.__init__`).
    """
    speculative = vllm_config.speculative_config
    if speculative is None or not has_block(speculative.method):
        return 0
    head = speculative.draft_model_config.hf_config
    is_from_anchor = speculative.method == "dspark" and getattr(head, "sample_from_anchor", True)
    return int(vllm_config.num_speculative_tokens) + (0 if is_from_anchor else 1)


def least_widths(vllm_config: Any) -> tuple[int, int]:
    """Return the least width of every step, and of a step that drafts (`plan.catch_up.CatchUp`)."""
    k_max, speculative = vllm_config.num_speculative_tokens, vllm_config.speculative_config
    is_rank = speculative is not None and in_lockstep(vllm_config)
    makes_one_pass = is_rank and speculative.parallel_drafting and not vllm_config.use_v2_model_runner
    is_constant = block(vllm_config) or (is_rank and not makes_one_pass)
    narrowest = k_max if is_constant else min(1, k_max)
    may_be_0 = not is_rank and (bool(backlog_rows(vllm_config)) or reads_every_step(vllm_config))
    return 0 if may_be_0 else narrowest, narrowest


def at_widths(vllm_config: Any) -> Sequence[Any]:
    """Return copies of the configuration by the width of drafts, 0 to K_max, for vLLM's scheduler.

    From one of them the scheduler reads the number of slots to keep for each request
    (`SpeculativeConfig.max_num_new_slots_for_drafting`): K - 1 with a parallel drafter, else 0; for a block
    those of `step_room`. They are copies, because workers and other threads read the engine's own configuration.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return [vllm_config]
    configs = []
    for width in range(vllm_config.num_speculative_tokens + 1):
        config, config_at_width = copy(vllm_config), copy(speculative)
        config_at_width.num_speculative_tokens = _block_slots(vllm_config) or max(1, width)
        config.speculative_config = config_at_width
        configs.append(config)
    return configs


def largest_graph(vllm_config: Any) -> int:
    """Return the tokens of the largest step with a CUDA graph, FULL or PIECEWISE; 0 without graphs.

    A larger step allocates its outputs outside the graphs' pool, so no replay overwrites them while they are in use.
    """
    return int(vllm_config.compilation_config.max_cudagraph_capture_size or 0)


def drafter_length(vllm_config: Any) -> int:
    """Return the longest sequence, in tokens, that the drafter can read; 0 without speculation."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return 0
    return int(speculative.draft_model_config.max_model_len or vllm_config.model_config.max_model_len)


def is_steered(vllm_config: Any) -> bool:
    """Whether the scheduler plans drafts, and the drafter can be left out of a step."""
    return vllm_config.speculative_config.method in STEERABLE_METHODS and plans_drafts(vllm_config)


def plans_drafts(vllm_config: Any) -> bool:
    """Whether the scheduler is the adapter's, or plans drafts like it."""
    kind = vllm_config.scheduler_config.scheduler_cls
    if kind is None:  # when the configuration is complete it gets the adapter's (`engine_args`)
        return vllm_config.speculative_config is not None and plugin_names.is_switched_on()
    return bool(getattr(resolve_name(kind) if isinstance(kind, str) else kind, "plans_drafts", False))

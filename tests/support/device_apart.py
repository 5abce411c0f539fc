"""Steps of a runner and its drafter whose device tensors have no values, so that a wait for one fails."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from vllm.v1.attention.backend import CommonAttentionMetadata

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.v1.drafting import Drafting
from specpilot.engine_adapter.vllm.v1.undrafted import reads_ahead, see_to_backlog
from tests.support.vllm_config import config

META = torch.device("meta")
HIDDEN, LAYERS, K_MAX = 8, 3, 7
PASS = 16
"""Tokens that one pass of the drafter takes."""
LARGEST_GRAPH = 13
"""Tokens of the largest step that has a CUDA graph."""


class Apart(TorchDispatchMode):
    """Fails on every operation over tensors of both sides but a copy to the device that is not waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_over = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        leaves = [item for item in tree_flatten((args, options))[0] if isinstance(item, torch.Tensor)]
        sides = {item.device.type for item in leaves}
        is_copy = func is torch.ops.aten._to_copy.default
        if is_copy and sides == {"cpu"} and torch.device(options.get("device", "cpu")) == META:
            assert options.get("non_blocking"), "a tensor went to the device and was waited for"
            self.handed_over += 1
        else:
            assert len(sides) < 2, f"{func} takes tensors of the host and of the device"
        return func(*args, **options)


class State(NamedTuple):
    """As much of vLLM's `ExecuteModelState` as the adapter reads."""

    scheduler_output: Any
    spec_decode_common_attn_metadata: Any
    hidden_states: torch.Tensor
    aux_hidden_states: list[torch.Tensor] | None


class Drafter:
    """As much of vLLM's drafter as the adapter asks; it notes the sizes of its passes."""

    method = "eagle3"
    device, dtype, block_size, max_num_tokens = META, torch.float32, 4, PASS

    def __init__(self) -> None:
        model_config = SimpleNamespace(
            dtype=torch.float32, is_multimodal_model=False, enable_prompt_embeds=False, is_moe=False, max_model_len=64
        )
        model_config.get_hidden_size = lambda: HIDDEN
        self.vllm_config = config("eagle3")
        self.vllm_config.model_config = model_config
        self.vllm_config.scheduler_config.max_num_seqs = 8
        self.vllm_config.speculative_config.draft_model_config.max_model_len = None
        self.vllm_config.compilation_config = SimpleNamespace(max_cudagraph_capture_size=LARGEST_GRAPH)
        self.input_ids = torch.zeros(PASS, dtype=torch.int32, device=META)
        self.hidden_states = torch.zeros(PASS, HIDDEN, device=META)
        self.passes: list[int] = []

        def forward(**_: Any) -> None:
            self.passes.append(self._count)

        self.model = _Model(forward)

    def _set_positions(self, count: int, positions: torch.Tensor) -> None:
        assert positions.shape[-1] == count
        self._count = count

    def build_per_group_and_layer_attn_metadata(self, batch: Any) -> Any:
        assert batch.query_start_loc.device == batch.seq_lens.device == META
        assert batch.query_start_loc_cpu.device.type == batch.seq_lens_cpu_upper_bound.device.type == "cpu"
        return None, {}

    def _determine_batch_execution_and_padding(self, count: int) -> Any:
        return None, count, None

    def build_model_inputs_first_pass(self, count: int, padded: int, _: Any) -> Any:
        return {}, count

    def _get_slot_mapping(self, count: int, slots: torch.Tensor) -> Any:
        assert slots.shape == (count,)
        return {}


class _Model:
    def __init__(self, forward: Callable[..., None]) -> None:
        self._forward = forward

    def combine_hidden_states(self, states: torch.Tensor) -> torch.Tensor:
        return states[:, :HIDDEN]

    def __call__(self, **arguments: Any) -> None:
        self._forward(**arguments)


NAMES = ["a", "b", "c", "d"]


class Step:
    """A step of four requests that have so many positions each, at the end of sequences of 20."""

    def __init__(self, lengths: list[int]) -> None:
        count = sum(lengths)
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        bound = torch.full((4,), 20, dtype=torch.int32)
        self.metadata = CommonAttentionMetadata(
            query_start_loc=torch.zeros(5, dtype=torch.int32, device=META),
            query_start_loc_cpu=starts,
            seq_lens=torch.zeros(4, dtype=torch.int32, device=META),
            seq_lens_cpu_upper_bound=bound,
            num_reqs=4,
            num_actual_tokens=count,
            max_query_len=max(lengths),
            max_seq_len=20,
            block_table_tensor=torch.zeros(4, 16, dtype=torch.int32, device=META),
            slot_mapping=torch.zeros(count, dtype=torch.int64, device=META),
            causal=True,
        )
        self.state = State(
            SimpleNamespace(total_num_scheduled_tokens=count),
            self.metadata,
            torch.zeros(count + 3, HIDDEN, device=META),  # padded
            [torch.zeros(count + 3, HIDDEN, device=META) for _ in range(LAYERS)],
        )
        self.runner = SimpleNamespace(
            input_batch=SimpleNamespace(req_ids=NAMES),
            input_ids=SimpleNamespace(gpu=torch.zeros(64, dtype=torch.int32, device=META)),
            num_prompt_logprobs={},
            execute_model_state=self.state,
            _get_positions=lambda number: torch.zeros(number, dtype=torch.int64, device=META),
            _input_fits_in_drafter=lambda _: self.width > 0,
        )
        self.width = 0

    def run(self, drafting: Drafting, plan: StepPlan, verified: Any = None, *, is_plain: bool = False) -> None:
        """What the wrappers do of a step, between the target's pass and the drafter's."""
        self.width, drafting.plan, drafting.is_plain = plan.width, plan, is_plain
        drafting.state = self.state
        if reads_ahead(drafting, self.runner, self.state):
            drafting.state = drafting.backlog.beyond_passes(self.state, has_prompt_logprobs=False)
        see_to_backlog(drafting, self.runner, verified, torch.zeros(4, 1 + K_MAX, dtype=torch.int32, device=META))

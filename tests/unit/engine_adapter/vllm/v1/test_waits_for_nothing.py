"""All that the adapter runs in a step waits for no accelerator: it runs where device tensors have no values at all.

The device is torch's meta device, on which whoever asks for a value fails, and `Apart` allows one way for a tensor of
the host to get there: a copy that is not waited for, of which `handed_over` is the only one (`test_rows` holds it to
pinned memory). An operation over tensors of both sides, which CUDA would copy for and wait, fails as well.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from specpilot.engine_adapter.plan.step_plan import StepPlan
    from specpilot.engine_adapter.vllm.rows import POSITIONS_PER_PASS
    from specpilot.engine_adapter.vllm.scheduler_output import forget_useless
    from specpilot.engine_adapter.vllm.v1 import backlog as module
    from specpilot.engine_adapter.vllm.v1.backlog import Backlog
    from specpilot.engine_adapter.vllm.v1.drafting import Drafting, use_plain_embeddings
    from specpilot.engine_adapter.vllm.v1.subset import _embeddings_of, chosen, spread
    from specpilot.engine_adapter.vllm.v1.undrafted import reads_ahead, see_to_backlog

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
            dtype=torch.float32, is_multimodal_model=False, enable_prompt_embeds=False, max_model_len=64
        )
        model_config.get_hidden_size = lambda: HIDDEN
        head = SimpleNamespace(
            hf_config=SimpleNamespace(), hf_text_config=SimpleNamespace(), use_mla=False, max_model_len=None
        )
        head.get_sliding_window = lambda: None
        self.vllm_config = SimpleNamespace(
            speculative_config=SimpleNamespace(method="eagle3", draft_model_config=head),
            model_config=model_config,
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            compilation_config=SimpleNamespace(max_cudagraph_capture_size=LARGEST_GRAPH),
        )
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


@contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch) -> Drafter:
    monkeypatch.setattr(module, "set_forward_context", _nothing)
    return Drafter()


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


def test_a_spell_without_drafts_and_all_ways_to_catch_up(drafter: Drafter) -> None:
    drafting = Drafting(Backlog(drafter))
    rows = drafting.backlog.rows
    verified = SimpleNamespace(cu_num_sampled_tokens=torch.zeros(4, dtype=torch.int32, device=META))
    with Apart() as apart:
        for _ in range(5):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        assert len(rows) == 20
        assert apart.handed_over == 0  # a step at K = 0 hands nothing over
        Step([1, 8, 1, 3]).run(drafting, StepPlan(0), verified)  # a prompt and drafts that are verified: taken in
        assert (drafter.passes, len(rows)) == ([9], 24)
        Step([1] * 4).run(drafting, StepPlan(0, catch_up=("a",)))
        assert (drafter.passes, len(rows)) == ([9, 6], 18 + 4)
        Step([1] * 4).run(drafting, StepPlan(2, catch_up=("a", "b", "c"), left_out=("d",)))
        assert sum(drafter.passes) == 9 + 6 + 1 + 7 + 7
        assert len(drafter.passes) == 3
        assert rows.by_request().keys() == {"d"}
        ended = SimpleNamespace(
            scheduled_new_reqs=[],
            finished_req_ids={"d"},
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
        )
        forget_useless(rows, ended)
        assert len(rows) == 0
    assert apart.handed_over > 10


def test_more_rows_than_a_pass_takes_and_rows_that_move(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_BACKLOG_MIB", "0.003")  # 32 rows of 3 x 8 numbers, and 4 to spare
    drafting = Drafting(Backlog(drafter))
    with Apart():
        for _ in range(8):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        drafting.backlog.rows.forget(["b"])
        for _ in range(2):
            Step([1] * 4).run(drafting, StepPlan(0), is_plain=True)
        Step([1] * 4).run(drafting, StepPlan(3, catch_up=tuple(NAMES)))
    assert sum(drafter.passes) == 3 * 10 + 2
    assert max(drafter.passes) <= PASS


def test_a_batch_is_cut_and_put_together(drafter: Drafter) -> None:
    step = Step([1, 8, 1, 3])
    count = step.metadata.num_actual_tokens
    with Apart() as apart:
        given, there = chosen(
            {
                "target_token_ids": torch.zeros(count, dtype=torch.int32, device=META),
                "target_positions": torch.zeros(count, dtype=torch.int64, device=META),
                "target_hidden_states": torch.zeros(count, HIDDEN, device=META),
                "next_token_ids": torch.zeros(4, dtype=torch.int32, device=META),
                "token_indices_to_sample": torch.zeros(4, dtype=torch.int32, device=META),
                "num_rejected_tokens_gpu": torch.zeros(4, dtype=torch.int32, device=META),
                "sampling_metadata": SimpleNamespace(temperature=None),
                "common_attn_metadata": step.metadata,
            },
            [1, 3],
            META,
        )
        drafts = spread(torch.zeros(2, K_MAX, dtype=torch.int64, device=META), there, 4)
    assert given["target_hidden_states"].shape == (11, HIDDEN)
    assert drafts.shape == (4, K_MAX)
    assert apart.handed_over == 1  # all indices in one piece


def test_image_embeddings_are_cut_with_the_batch(drafter: Drafter) -> None:
    """vLLM keeps on the host where they lie. The last position of a prompt that is left out may be one's."""
    step = Step([1, 8, 1, 3])
    count = step.metadata.num_actual_tokens
    is_embedding = torch.zeros(count, dtype=torch.bool)
    is_embedding[[0, 2, 3, 11]] = True  # of the first request, two of the second's, of the fourth
    given: dict[str, Any] = {
        "target_token_ids": torch.zeros(count, dtype=torch.int32, device=META),
        "target_positions": torch.zeros(count, dtype=torch.int64, device=META),
        "target_hidden_states": torch.zeros(count, HIDDEN, device=META),
        "next_token_ids": torch.zeros(4, dtype=torch.int32, device=META),
        "sampling_metadata": SimpleNamespace(temperature=None),
        "common_attn_metadata": step.metadata,
    }
    embeddings = [torch.zeros(3, HIDDEN, device=META), torch.zeros(1, HIDDEN, device=META)]
    with Apart():
        cut, _ = chosen(given | {"mm_embed_inputs": (embeddings, is_embedding)}, [1, 3], META)
    kept, places = cut["mm_embed_inputs"]
    assert [len(part) for part in kept] == [3]
    assert places.nonzero().flatten().tolist() == [1, 2, 9]
    positions = torch.tensor([*range(1, 9), *range(10, 13)])
    kept, _ = _embeddings_of(positions, [torch.arange(4.0)[:, None]], is_embedding, torch.device("cpu"))
    assert torch.cat(list(kept)).flatten().tolist() == [1.0, 2.0, 3.0]


def test_states_that_prompts_probabilities_are_read_of_are_copied_too(drafter: Drafter) -> None:
    backlog, state = Backlog(drafter), Step([1, 8, 1, 3]).state
    found = backlog.beyond_passes(state, has_prompt_logprobs=True)
    assert found.hidden_states is not state.hidden_states
    assert found.aux_hidden_states[0] is not state.aux_hidden_states[0]
    found = backlog.beyond_passes(state, has_prompt_logprobs=False)
    assert found.hidden_states is state.hidden_states


@pytest.mark.parametrize(("width", "is_plain", "is_ahead"), [(3, False, True), (0, False, False), (0, True, False)])
def test_prompts_probabilities_are_read_after_vllms_own_drafting(
    drafter: Drafter, width: int, *, is_plain: bool, is_ahead: bool
) -> None:
    drafting, step = Drafting(Backlog(drafter)), Step([1, 8, 1, 3] if width else [1] * 4)
    drafting.plan, drafting.is_plain, step.width = StepPlan(width), is_plain, width
    assert not reads_ahead(drafting, step.runner, step.state)
    step.runner.num_prompt_logprobs = {"b": 1}
    assert reads_ahead(drafting, step.runner, step.state) is is_ahead


@pytest.mark.parametrize(
    ("lengths", "largest", "is_copied"),
    [([1, 8, 1, 3], 13, True), ([1, 9, 1, 3], 13, False), ([1] * 4, 13, True), ([1] * 4, None, False)],
)
def test_only_what_a_graph_left_is_copied(
    drafter: Drafter, lengths: list[int], largest: int | None, *, is_copied: bool
) -> None:
    """A step beyond the largest graph leaves its states outside the graphs' pool; an engine without graphs always."""
    drafter.vllm_config.compilation_config.max_cudagraph_capture_size = largest
    state = Step(lengths).state
    found = Backlog(drafter).beyond_passes(state, has_prompt_logprobs=True)
    assert (found.aux_hidden_states[0] is not state.aux_hidden_states[0]) is is_copied
    assert (found.hidden_states is not state.hidden_states) is is_copied


def test_a_long_prompt_is_taken_in_by_bounded_passes(drafter: Drafter) -> None:
    """However many tokens a pass of the drafter takes: what a pass gathers is beyond the memory that vLLM measured."""
    length = 2 * POSITIONS_PER_PASS + 100
    drafter.max_num_tokens = 4 * POSITIONS_PER_PASS
    drafter.input_ids = torch.zeros(drafter.max_num_tokens, dtype=torch.int32, device=META)
    drafter.hidden_states = torch.zeros(drafter.max_num_tokens, HIDDEN, device=META)
    drafter.vllm_config.speculative_config.draft_model_config.max_model_len = 2 * length
    step = Step([1, length, 1, 1])
    step.metadata.seq_lens_cpu_upper_bound.fill_(length + 20)
    with Apart():
        step.run(Drafting(Backlog(drafter)), StepPlan(0))
    assert sum(drafter.passes) == length - 1
    assert max(drafter.passes) <= POSITIONS_PER_PASS == 4096


def test_a_drafter_shares_the_targets_embeddings_without_lora() -> None:
    plain, wrapper = torch.nn.Embedding(4, 2), torch.nn.Module()
    wrapper.base_layer = plain
    model = torch.nn.Module()
    model.model = torch.nn.Module()
    own, shared_config = SimpleNamespace(additional_config={"a": 1}), {"a": 1}
    model.model.vllm_config, own.additional_config = own, shared_config
    for shared in (wrapper, plain):
        model.model.embed_tokens = shared
        use_plain_embeddings(SimpleNamespace(model=model))
        assert model.model.embed_tokens is plain
    assert own.additional_config.items() > shared_config.items() == {"a": 1}.items()  # by which code is cached
    use_plain_embeddings(SimpleNamespace(model=torch.nn.Module()))


@pytest.mark.parametrize(
    "waits",
    [
        lambda device, host: device.tolist(),
        lambda device, host: device[device > 0],
        lambda device, host: bool((device == 0).all()),
        lambda device, host: device[host],
        lambda device, host: device + host,
        lambda device, host: host.to(META),
        lambda device, host: device.repeat_interleave(device),
    ],
)
def test_each_kind_of_wait_for_the_device_is_noticed(waits: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    device, host = torch.zeros(3, dtype=torch.int64, device=META), torch.arange(3)
    with Apart(), pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
        waits(device, host)

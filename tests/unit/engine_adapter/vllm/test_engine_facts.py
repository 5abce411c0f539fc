"""What a configuration leaves to the drafter: rows, lengths and graphs, and what of it is logged at start."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.vllm import engine_facts, start_notes
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from tests.support.vllm_config import config


class ModelConfig:
    is_multimodal_model = enable_prompt_embeds = is_moe = False
    max_model_len = 4096

    def __init__(self, window: int | None = None, head: dict[str, object] | None = None, **text: object) -> None:
        self.window = window
        self.hf_config = SimpleNamespace(**(head or {}))
        self.hf_text_config = SimpleNamespace(**text)
        self.dtype = SimpleNamespace(itemsize=2)

    def get_sliding_window(self) -> int | None:
        return self.window

    def get_hidden_size(self) -> int:
        return 4096


def engine(method: str = "eagle3", drafter: object = None, *, is_parallel: bool | None = None, **options: Any) -> Any:
    """Return an engine with K_max = 7 and this drafter; its head drafts in parallel, or not, if that is stated."""
    found = config(method, **options)
    found.num_speculative_tokens, found.model_config = 7, ModelConfig()
    found.speculative_config.draft_model_config = drafter or ModelConfig()
    if is_parallel is not None:
        found.speculative_config.parallel_drafting = is_parallel
    return found


BASE = ConfigFacts("eagle3", k_max=7, head_length=4096, length=4096)
LOCKSTEP = {"is_moe": True, "data_parallel": 2, "is_balanced_outside": True}
GRAPHS = {"device": "cuda", "graph_mode": "FULL_DECODE_ONLY"}
EVERY_STEP = "runs in every step, also at K = 0, because "
SHORT = "reads 2048 tokens at most and the model 4096: while a request of more than 2041 runs"


@pytest.mark.parametrize(
    ("changed", "limits"),
    [
        ({}, []),
        ({"head_length": None}, []),
        ({"head_length": 2048}, [SHORT]),
        ({"head_is_windowed": True, "head_length": 2048}, ["has a sliding window", SHORT]),
        ({"head_uses_mla": True}, [EVERY_STEP + "the drafter's attention is MLA"]),
        ({"has_connector": True}, [EVERY_STEP + "a KV connector"]),
        ({"has_connector": True, "is_v2": True}, [EVERY_STEP + "a KV connector"]),
        ({"method": "ngram", "is_v2": True}, [EVERY_STEP + "method 'ngram' reads each token"]),
        ({"method": "mtp", "head_kind": "mimo_mtp"}, []),
        ({"method": "mtp", "head_kind": "qwen4_exp_mtp"}, [EVERY_STEP + "catching up was not examined for MTP heads"]),
        ({"method": "dflash"}, []),
        ({"method": "dflash", "is_v2": True}, [EVERY_STEP + "vLLM's block drafter does on model runner V2"]),
        (LOCKSTEP, [EVERY_STEP + "data-parallel ranks of a mixture of experts"]),
        (LOCKSTEP | GRAPHS, [EVERY_STEP, "every request of every rank verifies K_max"]),
        (LOCKSTEP | GRAPHS | {"is_adaptive": True}, [EVERY_STEP]),
        ({"data_parallel": 2}, ["--api-server-count 1"]),
        ({"is_recurrent": True, "is_v2": True}, ["get one K"]),
        ({"is_recurrent": True}, ["with recurrent layers (GDN, Mamba) steps whose requests have different K"]),
        ({"attention": ("FLASH_ATTN", "FLASHINFER")}, ["with FLASHINFER steps whose requests have different K"]),
        (
            {"attention": ("FLASHMLA",), "is_async": True},
            ["backend FLASHMLA steps are scheduled synchronously", "with FLASHMLA steps"],
        ),
        ({"attention": ("FLASHMLA",), "is_async": True, "asks_async": True}, ["with FLASHMLA steps"]),
    ],
)
def test_what_an_engine_does_less_of_is_said_with_the_reason(changed: dict[str, Any], limits: list[str]) -> None:
    found = start_notes.limits_of(replace(BASE, **changed))
    assert len(found) == len(limits)
    assert all(words in note for words, note in zip(limits, found, strict=True))


@pytest.mark.parametrize(
    ("drafter", "windowed"),
    [
        (ModelConfig(None), False),
        (ModelConfig(128), True),
        (ModelConfig(128, use_sliding_window=True), True),
        (ModelConfig(128, use_sliding_window=False), False),
    ],
)
def test_a_drafter_that_runs_in_every_step_has_no_rows_and_that_is_said(drafter: ModelConfig, windowed: bool) -> None:
    found = engine(drafter=drafter)
    assert engine_facts.backlog_rows(found) == (0 if windowed else 8192)
    notes = start_notes.notes(found)
    assert [EVERY_STEP in note for note in notes] == [True] * windowed
    assert start_notes.notes(SimpleNamespace(speculative_config=None, model_config=None)) == []


LAYERS = {"eagle_aux_hidden_state_layer_ids": [2, 4]}


@pytest.mark.parametrize(
    ("method", "head", "states"),
    [
        ("eagle3", {}, 3),
        ("eagle3", LAYERS, 2),
        ("eagle3", {"eagle_config": LAYERS}, 2),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, 1),
        ("dflash", {}, 3),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 3, 5, 7]}}, 4),
        ("dflash", LAYERS | {"dflash_config": {"target_layer_ids": [1]}}, 2),
        ("dflash", {"dflash_config": {"use_aux_hidden_state": False}}, 1),
        ("eagle", {}, 1),
        ("mtp", {"model_type": "mimo_mtp"}, 1),
    ],
)
def test_rows_take_the_memory_that_the_operator_gives(
    method: str, head: dict[str, object], states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is what the head reads of the target at a position, each number of two bytes here."""
    found = engine(method, ModelConfig(head=head))
    monkeypatch.setenv("SPECPILOT_ENGINE_BACKLOG_MIB", "6")
    assert engine_facts.row_size(found) == states * 4096
    assert engine_facts.backlog_rows(found) == 6 * 128 // states


@pytest.mark.parametrize(
    ("head", "on_v1", "on_v2"),
    [
        ({"target_layer_ids": [1, 3, 5, 7]}, 3, 4),
        ({"eagle_config": {"layer_ids": [1, 3, 5, 7, 9]}}, 3, 5),
        (LAYERS | {"target_layer_ids": [1]}, 2, 2),
    ],
)
def test_model_runner_v2_finds_the_layers_of_a_head_in_more_fields(
    head: dict[str, object], on_v1: int, on_v2: int
) -> None:
    for runner, states in enumerate((on_v1, on_v2)):
        assert engine_facts.row_size(engine("eagle3", ModelConfig(head=head), runner_v2=runner)) == states * 4096


def with_graphs(largest: int, running: int, *, is_parallel: bool = True) -> Any:
    found = engine(is_parallel=is_parallel)
    found.scheduler_config.max_num_seqs = running
    found.compilation_config = SimpleNamespace(
        max_cudagraph_capture_size=largest, cudagraph_capture_sizes=[*range(8, largest + 1, 8)]
    )
    return found


@pytest.mark.parametrize(
    ("largest", "running", "is_parallel", "said"),
    [
        (512, 256, True, ("end at 512", "above 64 running", "the drafter's above 36", "capture-size 3584")),
        (512, 256, False, ("end at 512", "above 64 running", "capture-size 2048")),
        (512, 40, True, ("the drafter's above 36", "capture-size 560")),
        (512, 36, True, ()),
        (4096, 256, True, ()),
        (0, 256, True, ()),  # no graphs
    ],
)
def test_a_capture_limit_below_the_largest_step_is_logged_at_start_with_the_size_that_suffices(
    largest: int, running: int, is_parallel: bool, said: tuple[str, ...]
) -> None:
    notes = start_notes.graph_notes(with_graphs(largest, running, is_parallel=is_parallel))
    assert len(notes) == bool(said)
    assert all(words in notes[0] for words in said)


def test_a_mode_in_which_the_drafter_has_no_graphs_is_logged_at_start_with_the_remedy() -> None:
    found = with_graphs(4096, 64)
    found.compilation_config.cudagraph_mode = SimpleNamespace(name="FULL")
    [note] = start_notes.graph_notes(found)
    assert "cudagraph_mode=FULL the drafter has no CUDA graphs; leave it unset" in note


def test_a_mode_that_the_backend_does_not_support_is_named_with_the_one_that_runs() -> None:
    full, pieces = SimpleNamespace(name="FULL"), SimpleNamespace(name="FULL_AND_PIECEWISE")
    assert start_notes.mode_note(full, full) is None
    assert start_notes.mode_note(None, full) is None
    note = start_notes.mode_note(full, pieces)
    assert note is not None
    assert "does not support cudagraph_mode=FULL, so vLLM runs FULL_AND_PIECEWISE: leave it unset" in note


MIMO, QWEN = ModelConfig(head={"model_type": "mimo_mtp"}), ModelConfig(head={"model_type": "qwen4_exp_mtp"})


@pytest.mark.parametrize(
    ("method", "drafter", "is_parallel", "connector", "on_v2"),
    [
        ("mtp", MIMO, False, None, False),
        ("mtp", QWEN, False, None, True),
        ("ngram", None, False, None, True),
        ("eagle3", None, False, None, False),
        ("eagle3", None, False, "Offloading", True),
        ("eagle3", None, True, "Offloading", False),
        ("eagle3", ModelConfig(window=128), False, None, True),
        ("eagle3", ModelConfig(window=128), True, None, False),
    ],
)
def test_on_model_runner_v2_a_drafter_without_a_backlog_reads_every_step_itself_unless_it_is_p_eagles(
    method: str, drafter: ModelConfig | None, is_parallel: bool, connector: str | None, on_v2: bool
) -> None:
    for runner_v2, reads in ((0, False), (1, on_v2)):
        found = engine(method, drafter, is_parallel=is_parallel, runner_v2=runner_v2, connector=connector)
        assert engine_facts.reads_every_step(found) is reads
    assert not engine_facts.reads_every_step(SimpleNamespace(speculative_config=None))


@pytest.mark.parametrize(
    ("is_v2", "connector", "window", "least", "kept"),
    [
        (False, None, {}, 0, 1),
        (False, "Example", {}, 7, 7),
        (False, None, {"use_swa": True}, 7, 7),
        (True, None, {}, 0, 7),
    ],
)
def test_a_block_has_one_width_and_on_model_runner_v2_reads_every_step_itself(
    is_v2: bool, connector: str | None, window: dict[str, bool], least: int, kept: int
) -> None:
    head = ModelConfig(dflash_config=window, layer_types=["full_attention"])
    found = engine("dflash", head, is_parallel=True, runner_v2=is_v2, connector=connector)
    assert engine_facts.least_widths(found) == (least, 7)
    assert engine_facts.reads_every_step(found) is is_v2
    slots = [at.speculative_config.num_speculative_tokens for at in engine_facts.at_widths(found)]
    assert slots == [kept] * 8
    assert engine_facts.block(found) == 8
    assert engine_facts.block(config()) == 0


@pytest.mark.parametrize(
    ("method", "is_v2", "is_parallel", "least"),
    [
        ("mtp", False, False, 7),
        ("mtp", True, False, 7),
        ("eagle3", False, True, 1),
        ("dflash", False, True, 7),
        ("dflash", True, True, 7),
        ("draft_model", True, False, 7),
        ("ngram", True, False, 7),
    ],
)
def test_the_drafter_of_a_rank_in_lockstep_makes_the_same_passes_in_every_step(
    method: str, is_v2: bool, is_parallel: bool, least: int
) -> None:
    drafter = ModelConfig(head={"model_type": "mimo_mtp"})
    found = engine(method, drafter, is_parallel=is_parallel, runner_v2=is_v2, data=2, experts=8)
    assert engine_facts.least_widths(found)[0] == 0
    found.model_config.is_moe = True
    assert engine_facts.least_widths(found)[0] == least
    assert engine_facts.backlog_rows(found) == 0
    assert "in every step" in start_notes.notes(found)[0]


@pytest.mark.parametrize(("named", "positions"), [({}, 7), ({"sample_from_anchor": False}, 8)])
def test_a_dspark_block_may_draft_at_the_place_of_the_token_before_it(named: dict[str, bool], positions: int) -> None:
    found = engine("dspark", ModelConfig(head={**named}), is_parallel=True, runner_v2=True)
    assert engine_facts.block(found) == positions


def test_a_blocks_capture_limit_counts_its_own_positions() -> None:
    found = with_graphs(512, 64)
    found.speculative_config.method = "dflash"
    assert start_notes.graph_notes(found) == []
    found.scheduler_config.max_num_seqs = 65
    assert "--max-cudagraph-capture-size 520" in start_notes.graph_notes(found)[0]


def test_an_engine_without_a_drafter_keeps_nothing_for_it() -> None:
    assert engine_facts.backlog_rows(SimpleNamespace(speculative_config=None)) == 0


@pytest.mark.parametrize(("own", "length"), [(512, 512), (None, 2048)])
def test_a_drafter_reads_as_far_as_its_own_limit_or_the_models(own: int | None, length: int) -> None:
    found = config()
    found.speculative_config.draft_model_config = SimpleNamespace(max_model_len=own)
    found.model_config = SimpleNamespace(max_model_len=2048)
    assert engine_facts.drafter_length(found) == length
    assert engine_facts.drafter_length(SimpleNamespace(speculative_config=None)) == 0


@pytest.mark.parametrize(
    ("device", "is_multimodal", "embeds", "stay"),
    [
        ("cpu", False, False, True),
        ("cuda", False, False, False),
        ("cpu", True, False, False),
        ("cpu", False, True, False),
    ],
)
def test_states_stay_on_a_cpu_unless_vllm_feeds_the_model_embeddings(
    device: str, is_multimodal: bool, embeds: bool, stay: bool
) -> None:
    model = SimpleNamespace(is_multimodal_model=is_multimodal, enable_prompt_embeds=embeds)
    assert engine_facts.states_stay(SimpleNamespace(model_config=model), device) is stay

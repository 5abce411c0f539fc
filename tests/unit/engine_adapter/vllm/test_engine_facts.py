"""What a configuration leaves to the drafter: rows, lengths and graphs, and what of it is logged at start."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.vllm import engine_facts, start_notes
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


@pytest.mark.parametrize(
    ("drafter", "rows"),
    [
        (ModelConfig(None), 8192),
        (ModelConfig(128), 0),
        (ModelConfig(128, use_sliding_window=True), 0),
        (ModelConfig(128, use_sliding_window=False), 8192),
    ],
)
def test_a_drafter_that_looks_at_a_window_never_falls_behind(drafter: ModelConfig, rows: int) -> None:
    assert engine_facts.backlog_rows(engine(drafter=drafter)) == rows


@pytest.mark.parametrize(
    ("window", "drafter_length", "said"),
    [
        (None, 4096, []),
        (None, None, []),
        (128, 4096, ["sliding window"]),
        (None, 2048, ["reads 2048 tokens at most and the model 4096: while a request of more than 2041 runs"]),
        (128, 2048, ["sliding window", "no request speculates"]),
    ],
)
def test_limits_of_speculation_are_logged_at_start(
    window: int | None, drafter_length: int | None, said: list[str]
) -> None:
    found = engine(drafter=ModelConfig(window))
    found.speculative_config.draft_model_config.max_model_len = drafter_length
    notes = start_notes.notes(found)
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))
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


def test_a_head_with_mla_never_falls_behind_and_that_is_said() -> None:
    found = engine()
    found.speculative_config.draft_model_config.use_mla = True
    assert engine_facts.backlog_rows(found) == 0
    [note] = start_notes.notes(found)
    assert "MLA" in note
    assert "runs in every step" in note


@pytest.mark.parametrize(
    ("is_v2", "is_parallel", "reads"),
    [(False, False, False), (False, True, False), (True, False, True), (True, True, False)],
)
def test_beside_a_kv_connector_a_drafter_never_falls_behind_and_that_is_said(
    is_v2: bool, is_parallel: bool, reads: bool
) -> None:
    found = engine(is_parallel=is_parallel, connector="OffloadingConnector", runner_v2=is_v2)
    assert engine_facts.backlog_rows(found) == 0
    assert engine_facts.reads_every_step(found) is reads
    [note] = start_notes.notes(found)
    assert "KV connector" in note
    assert "runs in every step, also at K = 0" in note


@pytest.mark.parametrize(
    ("method", "kind", "is_v2", "reads"),
    [
        ("mtp", "mimo_mtp", True, False),
        ("mtp", "mimo_mtp", False, False),
        ("mtp", "qwen4_exp_mtp", True, True),
        ("mtp", "qwen4_exp_mtp", False, False),
        ("ngram", "", True, True),
        ("eagle3", "", True, False),
    ],
)
def test_on_model_runner_v2_a_drafter_without_a_backlog_reads_every_step_itself(
    method: str, kind: str, is_v2: bool, reads: bool
) -> None:
    found = engine(method, ModelConfig(head={"model_type": kind}), is_parallel=False, runner_v2=is_v2)
    assert engine_facts.reads_every_step(found) is reads


@pytest.mark.parametrize(("is_parallel", "reads"), [(False, True), (True, False)])
def test_of_heads_with_a_window_only_p_eagles_does_not_read_every_step(is_parallel: bool, reads: bool) -> None:
    found = engine(drafter=ModelConfig(window=128), is_parallel=is_parallel, runner_v2=1)
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

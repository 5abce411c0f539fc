"""One switch: with the adapter in `VLLM_PLUGINS`, an engine that speculates needs no further flag."""

import json
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs

from specpilot.engine_adapter import number_format, plugin, plugin_names
from specpilot.engine_adapter.agent.export import FOLDER
from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.vllm import data_parallel, engine_args, start_notes, versions
from tests.support import vllm_config
from tests.support.published_configs import CONFIGS
from tests.support.stack import DEMO_MODEL

SPECULATION = {"model": str(DEMO_MODEL / "peagle"), "method": "eagle3", "num_speculative_tokens": 7}


@pytest.fixture(autouse=True)
def kept_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test puts into the environment is gone after it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in (plugin_names.VARIABLE, versions.RUNNER, FOLDER, data_parallel.RANKS):
        os.environ.pop(name, None)


def arguments(**more: Any) -> EngineArgs:
    return EngineArgs(model=str(DEMO_MODEL / "target"), speculative_config=dict(SPECULATION), **more)


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        (("it speculates", None, False), engine_args.SYNC_SCHEDULER),
        (("it speculates", None, True), engine_args.ASYNC_SCHEDULER),
        (("it speculates", "my.Scheduler", True), "my.Scheduler"),
        ((None, None, True), None),
    ],
)
def test_an_engine_that_speculates_gets_the_scheduler_of_its_loop_and_another_keeps_its_own(
    config: tuple[Any, Any, bool], scheduler: str | None
) -> None:
    speculative, named, is_async = config
    engine = SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(scheduler_cls=named, async_scheduling=is_async),
        model_config=SimpleNamespace(use_mla=False),
    )
    engine_args.set_scheduler(engine)
    assert engine.scheduler_config.scheduler_cls == scheduler


class Flashmla:
    """An attention backend that is exact for decodes of one length, asynchronously."""

    require_uniform_decodes = True

    @classmethod
    def get_name(cls) -> str:
        return "FLASHMLA_SPARSE"

    @classmethod
    def get_builder_cls(cls) -> Any:
        return cls


@pytest.mark.parametrize(
    ("is_exact", "asks_async", "scheduler"),
    [
        (False, False, engine_args.SYNC_SCHEDULER),
        (False, True, engine_args.ASYNC_SCHEDULER),  # its start is refused, with the remedies
        (True, False, engine_args.ASYNC_SCHEDULER),
        (None, False, engine_args.ASYNC_SCHEDULER),  # not known before it is loaded
    ],
)
def test_an_engine_whose_attention_is_exact_only_so_is_scheduled_synchronously_and_says_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_exact: bool | None,
    asks_async: bool,
    scheduler: str,
) -> None:
    asked = []

    def choose(*shape: Any, **more: Any) -> Any:
        asked.append((shape, more))
        if is_exact is None:
            raise ValueError("no backend takes this")
        return type("Exact", (Flashmla,), {"require_uniform_decodes": False}) if is_exact else Flashmla

    monkeypatch.setattr("vllm.v1.attention.selector.get_attn_backend", choose)
    monkeypatch.setattr("vllm.config.set_current_vllm_config", lambda _: nullcontext())
    engine = SimpleNamespace(
        speculative_config="it speculates",
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=True),
        parallel_config="of four",
        cache_config=SimpleNamespace(cache_dtype="fp8"),
        model_config=SimpleNamespace(
            use_mla=True,
            dtype="bfloat16",
            hf_text_config=SimpleNamespace(index_topk=2048),
            get_head_size=lambda: 576,
            get_num_attention_heads={"of four": 32}.get,
        ),
    )
    engine_args.set_scheduler(engine, asks_async=asks_async)
    assert engine.scheduler_config.scheduler_cls == scheduler
    assert engine.scheduler_config.async_scheduling is (scheduler == engine_args.ASYNC_SCHEDULER)
    if not asks_async:
        assert asked == [((576, "bfloat16", "fp8"), {"use_mla": True, "use_sparse": True, "num_heads": 32})]
    lines = [record.getMessage() for record in caplog.records if "scheduled synchronously" in record.getMessage()]
    assert len(lines) == (scheduler == engine_args.SYNC_SCHEDULER)


OWN = {"dtype": "bfloat16", "per_request_spec_decode_metrics": "detailed", "max_cudagraph_capture_size": 64}
SHORT = {"speculative_config": None, "spec_model": SPECULATION["model"], "spec_tokens": 3}


@pytest.mark.parametrize(
    ("version", "given", "expected"),
    [
        ("0.31.0", {"max_num_seqs": 100}, ("float32", 800, "summary", "0")),
        ("0.32.0", {"max_num_seqs": 100}, ("float32", 800, "summary", None)),  # either runner was tested
        ("0.31.0", SHORT | {"max_num_seqs": 200}, ("float32", 800, "summary", "0")),
        (
            "0.31.0",
            {"model": "head", "speculative_config": None, "max_num_seqs": 100},
            ("float32", 608, "summary", "0"),
        ),
        ("0.31.0", {"speculative_config": None}, ("float32", None, "none", None)),
        ("0.31.0", OWN, ("bfloat16", 64, "detailed", "0")),
        ("0.31.0", {"runner": "1"}, ("float32", 1024, "summary", "1")),
        *(
            ("0.32.0", option, ("float32", None, "summary", None))
            for option in (
                {"enforce_eager": True},
                {"cudagraph_capture_sizes": [1, 2]},
                {"compilation_config": {"cudagraph_mode": "NONE"}},
                {"compilation_config": {"max_cudagraph_capture_size": 64}},
            )
        ),
    ],
)
def test_what_the_user_left_out_is_filled_and_what_was_set_stays(
    version: str, given: dict[str, Any], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`vllm serve HEAD`: vLLM takes target, method and K from the head's configuration."""
    monkeypatch.setattr(number_format, "lacks_bfloat16", lambda: True)
    monkeypatch.setattr(engine_args, "_has_cuda", lambda: True)
    monkeypatch.setattr(versions, "vllm_version", lambda: version)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b-eagle3"]))
    options = {"model": str(DEMO_MODEL / "target"), "speculative_config": dict(SPECULATION), **given}
    if runner := options.pop("runner", None):
        monkeypatch.setenv(versions.RUNNER, runner)
    args = EngineArgs(**options)
    engine_args.complete(args)
    found = (args.dtype, args.max_cudagraph_capture_size, args.per_request_spec_decode_metrics)
    assert (*found, os.environ.get(versions.RUNNER)) == expected
    assert Path(os.environ[FOLDER]).is_dir()


def test_without_a_folder_that_can_be_written_the_start_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UnsupportedEngineError, match="set TMPDIR"):
        engine_args.complete(arguments())


@pytest.mark.parametrize(
    ("parallel", "words"),
    [({"data": 2, "local": 1}, "other machines"), ({"data": 2}, ""), ({"data": 2, "experts": 8}, "")],
)
def test_ranks_that_cannot_be_steered_are_refused_before_a_model_is_loaded(
    parallel: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = vllm_config.config(**parallel)
    engine.scheduler_config.scheduler_cls = None
    monkeypatch.setattr(EngineArgs, "create_engine_config", lambda _: engine)
    engine_args.install.__wrapped__()
    with pytest.raises(UnsupportedEngineError, match=words) if words else nullcontext():
        assert arguments(data_parallel_size=2).create_engine_config() is engine
    assert os.environ[data_parallel.RANKS] == "2"


@pytest.mark.parametrize(("ranks", "index", "rank"), [(None, 0, None), ("1", 0, None), ("2", 0, 0), ("2", 1, 1)])
def test_a_rank_of_a_dense_model_learns_from_the_servers_process_that_it_is_one(
    ranks: str | None, index: int, rank: int | None
) -> None:
    if ranks is not None:
        os.environ[data_parallel.RANKS] = ranks
    assert data_parallel.rank_of(vllm_config.config(rank=index)) == rank


@pytest.mark.parametrize("named", [None, "", "other", "specpilot2", "other, specpilot"])
def test_without_the_switch_the_plugin_changes_nothing(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if named is not None:
        os.environ[plugin_names.VARIABLE] = named
    create = EngineArgs.create_engine_config
    engine_args.install.cache_clear()
    plugin.register()
    assert EngineArgs.create_engine_config is create
    with pytest.raises(UnsupportedEngineError, match="set VLLM_PLUGINS=specpilot"):
        plugin_names.check_switched_on()


@pytest.mark.parametrize("named", ["specpilot", "other,specpilot"])
def test_the_switch_is_the_name_in_vllms_list(named: str) -> None:
    os.environ[plugin_names.VARIABLE] = named
    plugin_names.check_switched_on()


@pytest.mark.parametrize(
    ("graphs", "words"),
    [
        (None, "none"),
        (Graphs("FULL", (8, 1024)), "FULL for any step, up to 1024 tokens"),
        (Graphs("FULL_AND_PIECEWISE", (8,), varlen=(8, 512)), "FULL for any mix of K, up to 512 tokens"),
        (Graphs("FULL_AND_PIECEWISE", (8,), {1: (8,), 8: (8,)}), "FULL where all requests have the same K of 0, 7"),
        (Graphs("PIECEWISE", (8,)), "piecewise"),
    ],
)
def test_five_lines_at_the_start_say_what_is_steered(graphs: Graphs | None, words: str) -> None:
    engine = SimpleNamespace(
        speculative_config=SimpleNamespace(method="eagle3", parallel_drafting=True),
        num_speculative_tokens=7,
        use_v2_model_runner=False,
    )
    lines = start_notes.summary(engine, graphs, static_k=None, notes=1)
    assert len(lines) == 5
    assert "eagle3, in parallel" in lines[0]
    assert "the engine chooses it" in lines[1]
    assert words in lines[2]
    assert "1 note above" in lines[3]
    assert "3 for all" in start_notes.summary(engine, graphs, static_k=3, notes=0)[1]

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter import compat
from engine_adapter.errors import UnsupportedEngineError


def config(method: str = "eagle3", table: object = None, data: int = 1, pipeline: int = 1) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, num_speculative_tokens_per_batch_size=table),
        parallel_config=SimpleNamespace(data_parallel_size=data, pipeline_parallel_size=pipeline),
    )


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_eagle_heads_are_steered(method: str) -> None:
    compat.check_config(config(method))


def test_an_engine_without_speculation_may_carry_the_adapter() -> None:
    compat.check_config(SimpleNamespace(speculative_config=None))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        *((config(method), ("eagle and eagle3", repr(method), "without --scheduler-cls"))
          for method in ("ngram", "ngram_gpu", "suffix", "mtp", "medusa", "draft_model", "mlp_speculator", "dflash")),
        (config(table={1: 7}), ("num_speculative_tokens_per_batch_size", "remove it")),
        (config(data=2), ("data parallelism", "one engine per rank")),
        (config(pipeline=2), ("pipeline parallelism", "tensor parallelism")),
    ],
)  # fmt: skip
def test_what_cannot_be_steered_is_refused_with_the_remedy(broken: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedEngineError) as refused:
        compat.check_config(broken)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu"])
def test_a_tested_version_passes(version: str) -> None:
    compat.check_version(version, any_version=False)


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "0.320.0"])
def test_an_untested_version_is_refused_with_an_override(version: str) -> None:
    with pytest.raises(UnsupportedEngineError, match="SPECPILOT_ENGINE_ANY_VLLM=1"):
        compat.check_version(version, any_version=False)
    compat.check_version(version, any_version=True)


def test_the_installed_version_is_one_that_was_tested() -> None:
    compat.check_version(compat.vllm_version(), any_version=False)

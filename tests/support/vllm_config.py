"""As much of vLLM's configuration as decides whether an engine is steered."""

from types import SimpleNamespace
from typing import Any


def config(
    method: str = "eagle3",
    table: object = None,
    data: int = 1,
    rank: int = 0,
    pipeline: int = 1,
    context: tuple[int, int] = (1, 1),
    runner_v2: int = 0,
    ahead: int = 0,
    connector: str | None = None,
    embeds: int = 0,
    experts: int = 0,
    local: int | None = None,
    launcher: str = "mp",
) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            enable_prompt_embeds=bool(embeds), is_multimodal_model=False, max_model_len=4096, is_moe=experts > 0
        ),
        speculative_config=SimpleNamespace(
            method=method, num_speculative_tokens_per_batch_size=table, draft_model_config=head("llama")
        ),
        num_speculative_tokens=3,
        parallel_config=SimpleNamespace(
            data_parallel_size=data,
            data_parallel_size_local=data if local is None else local,
            data_parallel_backend="mp",
            data_parallel_external_lb=False,
            local_engines_only=False,
            distributed_executor_backend=launcher,
            world_size=data,
            data_parallel_index=rank,
            pipeline_parallel_size=pipeline,
            decode_context_parallel_size=context[0],
            prefill_context_parallel_size=context[1],
        ),
        scheduler_config=SimpleNamespace(async_scheduling=bool(ahead)),
        use_v2_model_runner=bool(runner_v2),
        kv_transfer_config=SimpleNamespace(kv_connector=connector) if connector else None,
    )


def head(kind: str, **fields: object) -> Any:
    """The configuration of a head of this `model_type`, with the fields of its file."""
    return SimpleNamespace(
        hf_config=SimpleNamespace(model_type=kind, **fields),
        hf_text_config=SimpleNamespace(),
        get_sliding_window=lambda: None,
        max_model_len=4096,
    )

"""Sampling parameters: what headers add to them, and which ones a steered engine cannot serve beside drafts."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm import PoolingParams, SamplingParams
from vllm.exceptions import VLLMValidationError

from specpilot.engine_adapter.agent.gateway_headers import GatewayHeadersMiddleware
from specpilot.engine_adapter.vllm import parameters
from specpilot.engine_adapter.vllm.scheduler import SpecPilotScheduler


def engine(*, speculates: bool = True, scheduler_cls: Any = SpecPilotScheduler) -> Any:
    speculative = SimpleNamespace(method="eagle3") if speculates else None
    return SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler_cls),
        use_v2_model_runner=False,
    )


@pytest.mark.parametrize("ids", [[5], []])
def test_log_probabilities_of_named_tokens_are_refused_where_the_adapter_has_drafts_verified(ids: list[int]) -> None:
    params = SamplingParams(logprobs=1, logprob_token_ids=ids)
    with pytest.raises(VLLMValidationError, match="logprob_token_ids"):
        parameters.refuse_unserved(params, engine())
    parameters.refuse_unserved(params, engine(speculates=False))
    parameters.refuse_unserved(params, engine(scheduler_cls=None))


@pytest.mark.parametrize(
    ("too_many", "enough", "named"),
    [
        ({"min_tokens": 1, "stop_token_ids": list(range(121))}, {"stop_token_ids": list(range(121))}, "stop_token_ids"),
        ({"allowed_token_ids": list(range(1025))}, {"allowed_token_ids": list(range(1024))}, "allowed_token_ids"),
    ],
)
def test_more_tokens_than_model_runner_v2_has_room_for_are_refused_there(
    too_many: dict[str, Any], enough: dict[str, Any], named: str
) -> None:
    on_v2 = engine()
    on_v2.use_v2_model_runner = True
    with pytest.raises(VLLMValidationError, match=named):
        parameters.refuse_unserved(SamplingParams(**too_many), on_v2)
    parameters.refuse_unserved(SamplingParams(**enough), on_v2)
    parameters.refuse_unserved(SamplingParams(**too_many), engine())


def test_other_log_probabilities_and_what_samples_nothing_are_let_in() -> None:
    parameters.refuse_unserved(SamplingParams(logprobs=2), engine())
    parameters.refuse_unserved(PoolingParams(), engine())


async def test_what_headers_state_replaces_what_the_body_says_of_it() -> None:
    body = {"traffic_class": "mine", "top": 1}
    params, pooling = SamplingParams(extra_args=body), PoolingParams()

    async def serve(*_: Any) -> None:
        parameters.add_stated(params)
        parameters.add_stated(pooling)

    def request(headers: list[tuple[bytes, bytes]]) -> Any:
        return GatewayHeadersMiddleware(serve, None)({"type": "http", "headers": headers}, None, None)

    await request([])
    assert params.extra_args == body
    await request([(b"x-traffic-class", b"code"), (b"x-specpilot-k-max", b"0")])
    assert params.extra_args == {"traffic_class": "code", "top": 1, "k_max": 0}
    assert body == {"traffic_class": "mine", "top": 1}

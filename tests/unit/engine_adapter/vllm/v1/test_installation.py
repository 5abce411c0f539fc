"""The wrappers around vLLM's methods take arguments by position and by keyword, whichever vLLM uses."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.engine.core import EngineCore
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specpilot.engine_adapter.vllm import graph_record
from specpilot.engine_adapter.vllm.v1 import drafting
from specpilot.engine_adapter.vllm.v1.installation import install
from tests.support.device_apart import NAMES
from tests.unit.engine_adapter.vllm.v1.test_subset import arguments

install()
graph_record.install()

WRAPPED = {
    f"{owner.__name__}.{name}": method
    for owner in (GPUModelRunner, SpecDecodeBaseProposer, EngineCore)
    for name, method in vars(owner).items()
    if inspect.isfunction(method)
    and hasattr(method, "__wrapped__")
    and method.__globals__["__name__"].startswith("specpilot.")
}


def test_all_wrappers_are_looked_at() -> None:
    assert len(WRAPPED) == 14


@pytest.mark.parametrize("name", WRAPPED)
def test_arguments_may_come_by_position_or_by_keyword(name: str) -> None:
    wrapper: Any = WRAPPED[name]
    own, vllms = inspect.signature(wrapper, follow_wrapped=False), inspect.signature(wrapper.__wrapped__)
    either = [item.name for item in vllms.parameters.values() if item.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    by_position = own.bind(*either).arguments
    by_keyword = own.bind(either[0], **{item: item for item in either[1:]}).arguments
    for found in (by_position, by_keyword):
        named = {item: value for item, value in found.items() if item not in ("args", "kwargs")}
        assert named == {item: item for item in named}


class _SeenError(Exception):
    """What the drafter would lay out."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given


class _Drafter:
    """A drafter of vLLM's up to where it lays out the step."""

    method = "eagle"
    parallel_drafting = pass_hidden_states_to_model = True
    device = torch.device("cpu")

    def set_inputs_first_pass(self, **given: Any) -> None:
        raise _SeenError(given)


@pytest.mark.parametrize("positional", range(1, 12))
def test_a_batch_is_cut_however_vllm_hands_it_to_the_drafter(positional: int) -> None:
    given = {"num_speculative_tokens": 3} | arguments()
    assert [*inspect.signature(SpecDecodeBaseProposer.propose).parameters][1:] == [*given]
    drafter: Any = _Drafter()
    drafting.attach(drafter, SimpleNamespace(places=lambda: [1], batch=NAMES))  # type: ignore[arg-type]
    by_position = [*given.values()][:positional]
    by_keyword = {name: given[name] for name in [*given][positional:]}
    with pytest.raises(_SeenError) as seen:
        SpecDecodeBaseProposer.propose(drafter, *by_position, **by_keyword)
    assert seen.value.given["target_token_ids"].tolist() == [10, 11, 12, 13]
    assert seen.value.given["next_token_ids"].tolist() == [6]
    assert drafter.extra_slots_per_request == 3

"""Every running request has its tokens in every step, and the drafter's buffers hold what it lays out."""

import random
from collections import deque
from typing import Any

import pytest
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from specpilot.engine_adapter.vllm import versions
from specpilot.engine_adapter.vllm.scheduler import SpecPilotAsyncScheduler, SpecPilotScheduler
from tests.support.adapter_scheduler import K_MAX, add, end, offer, sampled, scheduler, step, stock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own
SEQUENCES, POSITIONS = 32, 256
LIMITS = {"max_num_seqs": SEQUENCES, "max_num_batched_tokens": POSITIONS, "enable_prefix_caching": False}


def full(engine: Any) -> Any:
    """Have as many requests decode as may run."""
    for number in range(SEQUENCES):
        add(engine, f"{number}", [*range(1, 9)], max_tokens=400)
    for _ in range(4 * SEQUENCES):
        step(engine)
    return engine


@pytest.mark.parametrize("head", ["peagle", "eagle3", "dflash"])
@pytest.mark.parametrize("k", [1, 3, K_MAX])
def test_no_running_request_stands_still_when_k_rises_under_load(
    k: int, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scheduler(monkeypatch, head=head, **LIMITS)
    offer(engine, 1, 0)
    full(engine)
    assert len(engine.running) == SEQUENCES
    offer(engine, 2, k)
    for _ in range(SEQUENCES + 2):  # all catch up, one or more in a step
        found = step(engine)
        assert found.keys() == {str(number) for number in range(SEQUENCES)}
    fits = {"peagle": POSITIONS // (2 * SEQUENCES), "dflash": POSITIONS // SEQUENCES - 2}
    assert set(found.values()) == {1 + min(k, fits.get(head, POSITIONS // SEQUENCES - 1))}


def test_a_block_that_does_not_fit_for_all_is_not_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch, head="dflash", **LIMITS | {"max_num_batched_tokens": POSITIONS - 1})
    offer(engine, 1, 2)
    seen = set()
    for number in range(SEQUENCES):
        add(engine, f"{number}", [*range(1, 9)], max_tokens=400)
        output = engine.schedule()
        seen.add((len(engine.running), output.num_spec_tokens_to_schedule))
        end(engine, output, sampled(engine, output))
    assert (SEQUENCES - 1, K_MAX) in seen
    assert {width for running, width in seen if running == SEQUENCES} == {0}


def test_prompts_at_k_0_get_as_much_of_a_step_as_without_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch, **LIMITS)
    offer(engine, 1, 0)
    for found in (engine, stock(monkeypatch, **LIMITS)):
        for number in range(SEQUENCES // 2):
            add(found, f"{number}", [*range(1, 9)], max_tokens=400)
        for _ in range(10):
            step(found, K_MAX if found is engine else 0)
        add(found, "prompt", [7] * 400)
        assert found.schedule().num_scheduled_tokens["prompt"] == POSITIONS - SEQUENCES // 2


def test_vllm_is_shown_its_own_configuration_outside_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch, **LIMITS)
    config = engine.vllm_config
    offer(engine, 1, 2)
    full(engine)
    assert engine.vllm_config is config
    assert config.num_speculative_tokens == config.speculative_config.num_speculative_tokens == K_MAX


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_laid_out_fits_beside_every_step(seed: int, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever K does, prompts come and requests end."""
    kind = {"kind": SpecPilotAsyncScheduler} if is_async else {}
    engine, chance = scheduler(monkeypatch, **kind, **LIMITS), random.Random(seed)
    version = count = 0
    widths, under_way = set(), deque[Any]()
    for _ in range(400):
        if chance.random() < 0.1:
            version += 1
            offer(engine, version, chance.choice([0, 0, 1, 2, 5, K_MAX]))
        if chance.random() < 0.5:
            count += 1
            add(engine, f"{count}", [7] * chance.choice([1, 8, 90, 400]), max_tokens=chance.choice([3, 40]))
        output = engine.schedule()
        under_way.append((output, sampled(engine, output)))
        requests, tokens = len(output.num_scheduled_tokens), output.total_num_scheduled_tokens
        width = output.num_spec_tokens_to_schedule
        assert tokens + max(0, width - 1) * requests <= POSITIONS
        for request in engine.running:
            is_ending = request.num_output_tokens + request.num_output_placeholders >= request.max_tokens
            assert request.request_id in output.num_scheduled_tokens or is_ending
        widths.add(width)
        if len(under_way) > is_async:  # vLLM's asynchronous loop schedules a step while one is under way
            end(engine, *under_way.popleft())
    assert widths >= {0, 1, 2}


@pytest.mark.skipif(not versions.is_among(versions.vllm_version(), versions.TESTED_VERSIONS), reason="0.33 goes on")
def test_who_sat_a_step_out_has_no_drafts_that_the_worker_no_longer_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for its next block the one of the lowest priority preempts itself; vLLM goes no further."""
    options = {"scheduling_policy": "priority", "enable_prefix_caching": False}
    engine = scheduler(monkeypatch, kind=SpecPilotAsyncScheduler, **options)
    offer(engine, 1, 3)
    for name, tokens, priority in (("before", 33, 0), ("lowest", 69, 5), ("after", 33, 0)):
        add(engine, name, [7] * tokens, priority=priority)
        step(engine)
    pool = engine.kv_cache_manager.block_pool
    held = pool.get_new_blocks(pool.get_num_free_blocks())
    while "after" in (output := engine.schedule()).num_scheduled_tokens:
        end(engine, output, sampled(engine, output))
    assert engine.requests["after"] in engine.running
    assert output.preempted_req_ids == {"lowest"}
    end(engine, output, sampled(engine, output))
    pool.free_blocks(held)
    found = engine.schedule()
    assert found.num_scheduled_tokens["after"] == 1
    assert [*found.scheduled_spec_decode_tokens] == ["before"]


def test_a_step_without_a_token_leaves_no_drafts_that_the_worker_no_longer_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the engine is paused, the end of a request lets vLLM run one: the worker then drops all others too."""
    engine = scheduler(monkeypatch, kind=SpecPilotAsyncScheduler)
    offer(engine, 1, 3)
    for name in ("stays", "ends"):
        add(engine, name, [7] * 9)
    for _ in range(3):
        step(engine)
    assert engine.requests["stays"].spec_token_ids == [-1] * 3
    engine.set_pause_state(PauseState.PAUSED_ALL)
    engine.finish_requests("ends", RequestStatus.FINISHED_ABORTED)
    assert not step(engine)
    engine.set_pause_state(PauseState.UNPAUSED)
    found = engine.schedule()
    assert (found.num_scheduled_tokens, found.scheduled_spec_decode_tokens) == ({"stays": 1}, {})


def test_a_step_whose_drafts_nobody_needs_has_the_width_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """On model runner V2 vLLM 0.33 would set its width to 0: a part of a prompt, whose drafts are dropped."""

    class OnV2(SpecPilotScheduler):
        def __init__(self, vllm_config: Any, **others: Any) -> None:
            monkeypatch.setattr(type(vllm_config), "use_v2_model_runner", True)
            super().__init__(vllm_config=vllm_config, **others)

    engine = scheduler(monkeypatch, kind=OnV2, **LIMITS)
    add(engine, "long", [7] * 400)
    output = engine.schedule()
    assert engine.requests["long"].is_prefill_chunk
    assert not getattr(output, "skip_drafts", False)

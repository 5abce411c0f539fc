"""The next turn of a session, from vLLM's own scheduler: the rows of the turn before are forgotten with it."""

from typing import Any

import pytest
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request, RequestStatus

from specpilot.policy.latency_goal import TPOT
from tests.support.adapter_scheduler import offer, scheduler, step

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own
BLOCK, TOKENS = 16, 8


def add(engine: Any, name: str, prompt: list[int], *, resumable: bool = False) -> None:
    """Add a request, or the next turn of one that is `resumable`."""
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    ahead = getattr(engine, "num_hash_lookahead_tokens", 0)
    hasher = get_request_block_hasher(BLOCK, sha256, *((ahead,) if ahead else ()))
    engine.add_request(Request(name, prompt, sampling, None, block_hasher=hasher, resumable=resumable))


@pytest.mark.parametrize("k", [0, 3])
def test_what_the_drafter_missed_of_a_turn_is_taken_off_the_prefix_cache(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prompt of two blocks and a half vLLM takes one from the cache: an EAGLE head needs the last again.

    From 0.33 on it takes both, as their hashes cover the token after them.
    """
    init_none_hash(sha256)
    engine = scheduler(monkeypatch, enable_prefix_caching=True)
    offer(engine, 1, k)
    add(engine, "session", [*range(1, 41)], resumable=True)
    for _ in range(TOKENS):
        step(engine)
    add(engine, "session", [*range(50, 60)], resumable=True)
    step(engine)
    add(engine, "other", [*range(1, 41)])
    known = 1 + bool(getattr(engine, "num_hash_lookahead_tokens", 0))
    assert step(engine)["other"] == (40 - known * BLOCK if k else 40)


def test_a_reply_of_a_session_ends_with_its_last_step_and_not_when_the_session_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init_none_hash(sha256)
    engine = scheduler(monkeypatch)
    add(engine, "session", [*range(1, 9)], resumable=True)
    add(engine, "other", [*range(1, 9)])
    for _ in range(TOKENS):
        step(engine)
    ended = [item for item in engine.latencies.take() if item.measure == TPOT]
    assert len(ended) == 2
    engine.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    assert engine.latencies.take() == []

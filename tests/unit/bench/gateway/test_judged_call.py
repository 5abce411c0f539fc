import json
from collections.abc import AsyncIterator

import pytest

from specpilot.bench.gateway.call_mix import LEAVING, WEIGHTS, Mix
from specpilot.bench.gateway.canned_engine import CannedConnection, CannedEngine
from specpilot.bench.gateway.judged_call import LEFT, OK, Call, Verdict, connect, judge, post
from tests.support.gateway_server import eventually
from tests.support.tcp_server import serving

ERROR = b'{"error": {"message": "no", "type": "api_error", "param": null, "code": "some_code"}}'
WHOLE = post("json", "7", "/v1/chat/completions", b"{}", {})
STREAM = post("stream", "7", "/v1/chat/completions", b"{}", {"events": 3})
DONE = b"data: [DONE]\n\n"


def event(at: int, number: str = "7") -> bytes:
    return b"data: " + json.dumps({"id": number, "choices": [{"delta": {"content": str(at)}}]}).encode() + b"\n\n"


EVENTS = event(0) + event(1) + event(2)


@pytest.mark.parametrize(
    ("call", "status", "body", "is_whole", "wanted"),
    [
        (WHOLE, 200, b'{"id": "7"}', True, OK),
        (WHOLE, 200, b'{"id": "8"}', True, "wrong"),
        (WHOLE, 200, b'{"id": "7"}', False, "lost"),
        (WHOLE, 0, b"", False, "lost"),
        (WHOLE, 503, ERROR, True, Verdict("refused", "some_code")),
        (WHOLE, 503, ERROR, False, "lost"),
        (WHOLE, 503, b"no", True, "wrong"),
        (STREAM, 200, EVENTS + DONE, True, OK),
        (STREAM, 200, EVENTS + DONE, False, "lost"),
        (STREAM, 200, EVENTS, True, "wrong"),
        (STREAM, 200, b"", True, "wrong"),
        (STREAM, 200, event(0) + event(2) + DONE, True, "wrong"),
        (STREAM, 200, event(0) + event(1, "8") + event(2) + DONE, True, "wrong"),
        (STREAM, 200, EVENTS + event(2) + DONE, True, "wrong"),
        (STREAM, 200, event(0) + b"data: " + ERROR + b"\n\n", True, Verdict("broken", "some_code")),
        (STREAM, 200, event(0) + b"event: error\ndata: " + ERROR + b"\n\n", True, Verdict("broken", "some_code")),
        (STREAM, 200, event(1) + b"data: " + ERROR + b"\n\n", True, "wrong"),
        (STREAM, 200, event(0) + (b"data: " + ERROR + b"\n\n") * 2, True, "wrong"),
        (STREAM, 200, event(0)[:-9], True, "lost"),
    ],
)
def test_a_verdict_tells_what_became_of_a_request(
    call: Call, status: int, body: bytes, is_whole: bool, wanted: Verdict | str
) -> None:
    found = judge(call, status, body, is_whole=is_whole)
    assert wanted in {found, found.outcome}


@pytest.fixture
async def engine() -> AsyncIterator[tuple[CannedEngine, int]]:
    canned = CannedEngine()
    async with serving(lambda: CannedConnection(canned)) as port:
        yield canned, port


async def test_the_canned_engine_answers_each_kind_as_asked_and_frees_its_slots(
    engine: tuple[CannedEngine, int],
) -> None:
    canned, port = engine
    mix = Mix(1, "token")
    for kind in ("json", "stream", "paced", "large", "conversation", "stalled"):
        caller = await connect(port)
        assert await caller.ask(mix.of(kind)) == OK
        assert not canned.held
        caller.close()
    caller = await connect(port)
    assert await caller.ask(mix.of("broken")) == Verdict("lost", "a stream cut off")


@pytest.mark.parametrize("phase", LEAVING)
async def test_a_client_that_leaves_holds_no_slot(engine: tuple[CannedEngine, int], phase: str) -> None:
    canned, port = engine
    caller = await connect(port)
    assert await caller.ask(Mix(1, "token").leaving(phase)) == LEFT
    assert canned.requests == (phase in {"wait", "stream"})
    await eventually(lambda: not canned.held)


def test_a_mix_is_the_same_for_a_seed_and_has_every_kind() -> None:
    first, second, other = (Mix(seed, "token") for seed in (1, 1, 2))
    drawn = [first.draw() for _ in range(2000)]
    assert drawn == [second.draw() for _ in range(2000)]
    assert drawn != [other.draw() for _ in range(2000)]
    assert {call.kind for call in drawn} == set(WEIGHTS)
    assert len({call.number for call in drawn}) == 2000

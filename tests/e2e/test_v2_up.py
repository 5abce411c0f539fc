"""The whole system on model runner V2: `specpilot up` with P-EAGLE, vLLM's kernels interpreted on a CPU, adapts K."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI

from specpilot.engine_adapter.vllm import versions
from specpilot.policy import engine_metrics as names
from tests.support.stack import ROOT, Stack, call, counters, prompts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extended("V2 whole system"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
    ),
]

LONGEST_S, IN_FLIGHT = 120.0, 6


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    running = Stack(
        tmp_path_factory.mktemp("v2"),
        *("--max-num-seqs", "8", "--engine-args", "--dtype float32 --max-num-batched-tokens 512"),
        PYTHONPATH=f"{ROOT / 'tests' / 'support' / 'interpreted'}:{ROOT}",
        TRITON_INTERPRET="1",
        VLLM_USE_V2_MODEL_RUNNER="1",
        SPECPILOT_ENGINE_CALIBRATE_S="0",  # its steps would take minutes
    )
    yield running
    assert running.stop() == 0


async def serve(stack: Stack) -> int:
    """Keep so many requests in flight until K is steered, at longest for a while; return how many replies came."""
    wanted, replies = prompts(30), list[str]()

    async def watch() -> None:
        end = time.monotonic() + LONGEST_S
        while not (len(replies) > IN_FLIGHT and await asyncio.to_thread(is_steered, stack)):
            if time.monotonic() > end:
                return check_steered(stack)
            await asyncio.sleep(0.5)
        return None

    async with AsyncOpenAI(base_url=f"{stack.gateway}/v1", api_key="test", max_retries=0) as client:

        async def chat(first: int) -> None:
            done = 0
            while not watching.done():
                name, item = wanted[(first * 7 + done) % len(wanted)]
                reply = await client.chat.completions.create(
                    model="demo",
                    messages=item["messages"],  # type: ignore[arg-type]
                    max_tokens=60,
                    temperature=0,
                    extra_headers={"X-Traffic-Class": name},
                )
                replies.append(reply.choices[0].finish_reason)
                done += 1

        watching = asyncio.create_task(watch())
        await asyncio.gather(watching, *(chat(number) for number in range(IN_FLIGHT)))
    assert set(replies) <= {"stop", "length"}  # the demo model ends one of them at once
    return len(replies)


def check_steered(stack: Stack) -> None:
    found = call(f"{stack.engine}/speculation")[1]
    assert found["source"] in ("law", "fixed")  # fixed in a window of the control group
    assert found["schedule"]
    assert found["schedule"]["version"] > 2
    assert found["schedule"]["guidance"]
    assert found["schedule"]["fleet"]
    assert sum(map(sum, found["schedule"]["fleet"]["accepts"])) > 0
    assert found["law"]
    assert found["law"]["choices"] > 0
    drafts = {int(k): count for (k,), count in counters(stack.engine, names.DRAFTS, "k").items()}
    assert len([k for k, count in drafts.items() if count > 3]) > 1
    accepts = sum(counters(stack.engine, names.ACCEPTS, "position").values())
    assert accepts > 0.1 * sum(k * count for k, count in drafts.items())


def is_steered(stack: Stack) -> bool:
    try:
        check_steered(stack)
    except AssertionError:
        return False
    return True


def test_the_controller_learns_from_an_engine_on_v2_and_sets_its_k(stack: Stack) -> None:
    assert asyncio.run(serve(stack)) > IN_FLIGHT
    assert "Using V2 Model Runner" in (stack.folder / "state" / "logs" / "engine-0.log").read_text()

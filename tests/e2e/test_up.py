"""The product as a user meets it: `specpilot up` on real vLLM, a real P-EAGLE pair, a real Redis, the real client."""

import asyncio
import random
import re
import signal
import threading
import time
from os import kill
from typing import Any, Self

import pytest
from openai import AsyncOpenAI, OpenAI

from specpilot.policy import engine_metrics as names
from tests.e2e.conftest import Reply, greedy_replies
from tests.support.stack import Stack, call, counters, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BY_SCHEDULE = ("law", "fixed")
"""Where K comes from under a valid schedule: the engine's own law, or in a window of the control group its rows."""
MESSAGES: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]


@pytest.fixture
def client(stack: Stack) -> Any:
    with OpenAI(base_url=f"{stack.gateway}/v1", api_key="none", max_retries=0) as subject:
        yield subject


def k_of_default(stack: Stack) -> int | None:
    """Return the K that the engine's schedule fixes, else `None`."""
    override = call(f"{stack.engine}/speculation")[1]["override"]  # none yet in a stack that has just started
    return int(override["k"]) if override else None


def source_of_k(stack: Stack) -> str:
    return str(call(f"{stack.engine}/speculation")[1]["source"])


def chat(client: OpenAI, **arguments: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=MESSAGES, **({"max_tokens": 48} | arguments))


def test_step_times_were_measured_before_traffic(stack: Stack) -> None:
    log = (stack.folder / "state" / "logs" / "engine-0.log").read_text()
    assert re.search(r"step times calibrated in \S+ s with up to [1-9]\d* requests running", log)


def test_engines_choose_k_by_the_policys_guidance_and_a_fixed_k_again(stack: Stack, client: OpenAI) -> None:
    stack.put_policy(k_max=2, control_group_ratio=0.0)
    until(lambda: chat(client) and source_of_k(stack) == "law")
    # The law has estimates a second after its first traffic.
    until(lambda: chat(client, max_tokens=200) and call(f"{stack.engine}/speculation")[1]["law"])
    state = call(f"{stack.engine}/speculation")[1]
    assert state["schedule"]["guidance"]["classes"]["default"]["k_max"] == 2
    assert state["law"]["groups"], state["law"]
    for group in state["law"]["groups"]:
        assert group["k"] <= 2
        assert group["why"].startswith("position")
    stack.put_policy(mode="off", k_max=None)
    until(lambda: source_of_k(stack) == "fixed")
    stack.put_policy(mode="act")
    until(lambda: source_of_k(stack) == "law")


def test_a_seed_gives_the_same_text_while_k_stays(stack: Stack, client: OpenAI) -> None:
    """Above temperature 0 the draws of the rejection sampler go by the drafts, as in vLLM without the adapter."""
    stack.put_policy(mode="off", static_k=7)
    until(lambda: k_of_default(stack) == 7)
    two, again = (chat(client, n=2, temperature=1.0, seed=5) for _ in range(2))
    stack.put_policy(mode="act", static_k=None)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert [c.message.content for c in two.choices] == [c.message.content for c in again.choices]


def test_logprobs_and_stop(client: OpenAI) -> None:
    detailed = chat(client, logprobs=True, top_logprobs=2, max_tokens=8)
    assert len(detailed.choices[0].logprobs.content) == detailed.usage.completion_tokens
    text = chat(client, temperature=0).choices[0].message.content
    word = text.split()[1]
    stopped = chat(client, temperature=0, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text.split(word)[0]


def test_every_address_that_up_prints_answers(stack: Stack) -> None:
    for url in (f"{stack.admin}/", f"{stack.admin}/openapi.json", f"{stack.admin}/metrics", f"{stack.gateway}/metrics"):
        assert call(url)[0] == 200, url
        assert url.removesuffix("/openapi.json").removesuffix("/metrics").removesuffix("/") in stack.said()
    assert counters(stack.engine, names.SCHEDULE_VERSION)


def test_a_put_changes_k_on_the_running_engine_within_a_second(stack: Stack, client: OpenAI) -> None:
    stack.put_policy(mode="off", static_k=2)
    until(lambda: k_of_default(stack) == 2)
    stack.put_policy(mode="off", static_k=6)
    until(lambda: k_of_default(stack) == 6, 30.0, 0.02)  # ten times one controller tick and the way to the engine
    version = call(f"{stack.engine}/speculation")[1]["version"]
    schedule = {"version": version + 1000, "guidance": {"override": {"k": 4}}}
    status, state, _ = call(f"{stack.engine}/speculation", "PUT", schedule)
    assert (status, state["version"]) == (200, version + 1000)  # with its answer it is in force
    until(lambda: call(f"{stack.engine}/speculation")[1]["version"] > version + 1000)
    chat(client, max_tokens=64)
    stack.put_policy(mode="act", static_k=None)


def test_two_classes_in_one_batch_get_different_k(stack: Stack) -> None:
    stack.put_policy(mode="act", probe_ratio=0.0, classes={"code": {"pin": 5}, "chat": {"pin": 1}, "json": {}})

    def pinned() -> bool:
        classes = call(f"{stack.engine}/speculation")[1]["schedule"]["guidance"]["classes"]
        return {"code", "chat"} <= set(classes) and [classes[name]["k_min"] for name in ("code", "chat")] == [5, 1]

    until(pinned)
    before = counters(stack.engine, names.DRAFTS, "traffic_class", "k")

    async def both() -> None:
        async with AsyncOpenAI(base_url=f"{stack.gateway}/v1", api_key="none", max_retries=0) as client:
            await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="demo",
                        messages=MESSAGES,
                        max_tokens=96,
                        extra_headers={"X-Traffic-Class": name},
                        extra_body={"ignore_eos": True},
                    )
                    for name in ("code", "chat") * 4
                )
            )

    asyncio.run(both())

    def rise_of_drafts() -> dict[tuple[str, ...], float]:
        after = counters(stack.engine, names.DRAFTS, "traffic_class", "k")
        return {key: count - before.get(key, 0.0) for key, count in after.items() if count > before.get(key, 0.0)}

    until(lambda: {("code", "5"), ("chat", "1")} <= rise_of_drafts().keys())
    time.sleep(1.0)  # with the last of them
    rise = rise_of_drafts()
    assert rise["code", "5"] > 10 * sum(v for (name, k), v in rise.items() if name == "code" and k not in "05")
    assert rise["chat", "1"] > 10 * sum(v for (name, k), v in rise.items() if name == "chat" and k not in "01")
    stack.put_policy(mode="act", probe_ratio=0.02, classes={"code": {}, "chat": {}, "json": {}})


@pytest.mark.extended("whole system, text")
def test_output_is_that_of_an_engine_without_speculation_while_k_changes(stack: Stack, reference: list[Reply]) -> None:
    rng = random.Random(11)
    done = threading.Event()
    changes = []

    def thrash() -> None:
        while not done.is_set():
            state = call(f"{stack.engine}/speculation")[1]
            pins = {name: rng.randint(0, 7) for name in ("default", "code", "chat", "json")}
            classes = {name: {"k_min": k, "k_max": rng.choice([k, 7])} for name, k in pins.items()}
            guidance = {"classes": classes, "probe_ratio": rng.choice([0, 0.02, 0.3])}
            schedule = {"version": state["version"] + 1, "guidance": guidance}
            changes.append(call(f"{stack.engine}/speculation", "PUT", schedule)[0])
            done.wait(rng.uniform(0, 0.05))

    thread = threading.Thread(target=thrash)
    thread.start()
    try:
        replies = asyncio.run(greedy_replies(stack.gateway, 100))
    finally:
        done.set()
        thread.join()
    assert changes.count(200) > 50
    mismatches = [i for i, (mine, theirs) in enumerate(zip(replies, reference, strict=True)) if mine != theirs]
    assert mismatches == []


class Traffic:
    """Requests without a pause from several threads, each outcome kept."""

    def __init__(self, stack: Stack, threads: int = 4) -> None:
        self._stack = stack
        self._done = threading.Event()
        self.statuses: list[int] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        body = {"model": "demo", "messages": MESSAGES, "max_tokens": 24}
        while not self._done.is_set():
            self.statuses.append(call(f"{self._stack.gateway}/v1/chat/completions", "POST", body)[0])


@pytest.mark.parametrize("part", ["redis-server", "controller"])
def test_a_killed_part_fails_no_request_and_comes_back(stack: Stack, part: str) -> None:
    assert source_of_k(stack) in BY_SCHEDULE
    with Traffic(stack) as traffic:
        until(lambda: len(traffic.statuses) > 10)
        victim = stack.children()[part]
        kill(victim, signal.SIGKILL)
        time.sleep(1.5)
        assert source_of_k(stack) in BY_SCHEDULE
        until(lambda: stack.children().get(part, victim) != victim)
        version = call(f"{stack.engine}/speculation")[1]["version"]
        until(lambda: call(f"{stack.engine}/speculation")[1]["version"] > version)
    assert set(traffic.statuses) == {200}
    assert f"{part.removesuffix('-server')} died" in stack.said()


def test_a_frozen_redis_fails_no_request(stack: Stack) -> None:
    redis = stack.children()["redis-server"]
    with Traffic(stack) as traffic:
        kill(redis, signal.SIGSTOP)
        time.sleep(5.0)
        assert source_of_k(stack) in BY_SCHEDULE
        kill(redis, signal.SIGCONT)
        version = call(f"{stack.engine}/speculation")[1]["version"]
        until(lambda: call(f"{stack.engine}/speculation")[1]["version"] > version)
    assert set(traffic.statuses) == {200}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "JSON"),
        ({"guidance": {"override": {"k": 99}}}, "at most 64"),
        ({"guidance": {"classes": {"code": {}}}}, "default"),
    ],
)
def test_a_bad_schedule_is_refused_and_the_running_one_stays(stack: Stack, body: Any, word: str) -> None:
    status, answer, _ = call(f"{stack.engine}/speculation", "PUT", body)
    assert 400 <= status < 500
    assert word in answer["error"]["message"]
    assert source_of_k(stack) in BY_SCHEDULE

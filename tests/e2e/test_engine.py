"""The adapter alone in a real engine: `specpilot engine`, K by `PUT`, no Redis, no gateway."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specpilot.policy import engine_metrics as names
from specpilot.policy.bands import BAND_EDGES
from tests.support.stack import DEMO_MODEL, Engine, call, counters, prompts, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CLASSES = ("default", "code", "chat", "json")
EXPORTED_S = 0.6
"""Evidence is on `/metrics` this long after the step that it counts."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    flags = ("--drafter", str(DEMO_MODEL / "peagle"), "--k-max", "7", "--static-k", "3", "--dtype", "float32")
    running = Engine(tmp_path_factory.mktemp("engine"), *flags)
    yield running
    running.stop()


def put(engine: Engine, guidance: dict[str, Any]) -> None:
    status, answer, _ = call(f"{engine.url}/speculation", "PUT", {"guidance": guidance})
    assert status == 200, answer


def set_k(engine: Engine, k: int) -> None:
    """Fix K of all requests; each class is counted by itself."""
    put(engine, {"classes": {name: {} for name in CLASSES}, "override": {"k": k}})


def let_it_choose(engine: Engine, probe_ratio: float, k_max: int = 7) -> None:
    put(engine, {"classes": {name: {"k_max": k_max} for name in CLASSES}, "probe_ratio": probe_ratio})


def chat(engine: Engine, messages: Any, traffic_class: str = "chat", **arguments: Any) -> Any:
    body = {"model": "demo", "messages": messages, "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    extra = {"vllm_xargs": {"traffic_class": traffic_class}}
    status, answer, _ = call(f"{engine.url}/v1/chat/completions", "POST", body | extra | arguments, timeout_s=120.0)
    assert status == 200, answer
    return answer


def crowd(engine: Engine, count: int, **arguments: Any) -> list[Any]:
    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(chat, engine, item["messages"], name, **arguments) for name, item in prompts(count)]
        return [job.result() for job in jobs]


def total(engine: Engine, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    time.sleep(EXPORTED_S)
    return counters(engine.url, name, *labels)


def test_before_any_schedule_the_static_k_holds(engine: Engine) -> None:
    state = call(f"{engine.url}/speculation")[1]
    assert (state["source"], state["static_k"], state["k_max"], state["version"]) == ("fixed", 3, 7, 0)
    chat(engine, prompts(3)[0][1]["messages"])
    assert {k for (k,), count in total(engine, names.DRAFTS, "k").items() if count} <= {"3", "2", "1", "0"}


def test_the_evidence_equals_vllms_own_counts(engine: Engine) -> None:
    for k_max in (5, 2, 7):
        let_it_choose(engine, 1.0, k_max)
        crowd(engine, 24)
    set_k(engine, 5)  # drafts at each position on any machine: on a slow one the law chose K = 0 for nearly all
    crowd(engine, 24)
    accepts = total(engine, names.ACCEPTS, "position")
    theirs = counters(engine.url, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert {int(pos): count for (pos,), count in accepts.items() if count} == {
        int(pos) + 1: count for (pos,), count in theirs.items() if count
    }
    assert accepts["5",] > 0
    drafts = {int(k): count for (k,), count in counters(engine.url, names.DRAFTS, "k").items()}
    assert sum(count for k, count in drafts.items() if k) == _vllm(engine, "num_drafts")
    assert sum(k * count for k, count in drafts.items()) == _vllm(engine, "num_draft_tokens")
    trials = counters(engine.url, names.TRIALS, "position")
    assert trials["1",] == _vllm(engine, "num_drafts")
    assert all(trials[position] >= accepts[position] for position in accepts)
    assert sum(counters(engine.url, names.PROBES).values()) > 0


def test_the_route_tells_where_requests_lie_and_where_new_ones_begin(engine: Engine) -> None:
    crowd(engine, 12)
    bands = call(f"{engine.url}/speculation")[1]["bands"]
    assert bands["edges"] == list(BAND_EDGES)
    begins = {item["class"]: item for item in bands["begin"]}
    assert set(begins) == set(CLASSES) - {"default"}
    assert begins["json"]["band"] > begins["chat"]["band"]
    assert {item["temperature"] for item in bands["begin"]} == {"greedy"}
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(chat, engine, prompts(3)[0][1]["messages"], max_tokens=1000)
        found: list[Any] = []

        def runs() -> bool:
            found[:] = call(f"{engine.url}/speculation")[1]["bands"]["running"]
            return bool(found) or long.done()

        until(runs, every=0.05)
        (running,) = found
        long.result()
    assert set(running) == {"class", "band", "k", "requests"}
    assert (running["class"] in CLASSES, running["requests"]) == (True, 1)
    assert call(f"{engine.url}/speculation")[1]["bands"]["running"] == []  # it has ended


def _vllm(engine: Engine, name: str) -> float:
    return sum(counters(engine.url, f"vllm:spec_decode_{name}_total").values())


def test_at_k_0_the_drafter_is_off_and_new_requests_speculate_again(engine: Engine) -> None:
    set_k(engine, 0)
    before, unseen = total(engine, names.DRAFTS, "k"), 0.0
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(crowd, engine, 12, max_tokens=400)  # several times as long as an export
        while not served.done():
            unseen = max(unseen, counters(engine.url, names.BACKLOG_TOKENS)[()])
            time.sleep(0.1)
        served.result()
    after = total(engine, names.DRAFTS, "k")
    assert {k for (k,), count in after.items() if count > before.get((k,), 0.0)} == {"0"}
    assert unseen > 12 * 50  # most of what the 12 decoded meanwhile
    set_k(engine, 4)
    reply = chat(engine, prompts(3)[0][1]["messages"])
    assert reply["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert total(engine, names.BACKLOG_TOKENS)[()] == 0


@pytest.mark.parametrize("is_fixed", [True, False])
def test_a_requests_ceiling_bounds_its_drafts_and_probes_beside_requests_without_one(
    engine: Engine, *, is_fixed: bool
) -> None:
    def spent(k_max: object) -> dict[str, Any]:
        arguments = {"traffic_class": "json", "k_max": k_max}
        reply = chat(engine, prompts(3)[0][1]["messages"], max_tokens=160, vllm_xargs=arguments)
        found: dict[str, Any] = reply["metrics"]["speculative_decoding"]
        return found

    if is_fixed:
        set_k(engine, 7)
    else:
        let_it_choose(engine, 1.0)
    with ThreadPoolExecutor(4) as pool:
        none, two, *free = pool.map(spent, [0, 2, 7, "nonsense"])
    assert none["num_draft_tokens"] == 0
    assert 0 < two["num_draft_tokens"] <= 2 * two["num_spec_steps"]
    assert sum(two["acceptance_histogram"][3:]) == 0
    assert all(one["num_draft_tokens"] > 0 for one in free)
    assert not is_fixed or all(one["num_draft_tokens"] > 2 * one["num_spec_steps"] for one in free)


STREAMED = {"stream": True}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, **STREAMED}),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 2, "temperature": 0.8}),
        ("/v1/completions", {"prompt": ["Hello", "Once"]}),
        ("/v1/completions", {"prompt": "Hello", **STREAMED}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/responses", {"input": "Hello", **STREAMED}),
        ("/v1/messages", {"messages": MESSAGES}),
    ],
)
def test_a_header_states_the_class_on_every_route_over_the_body(
    engine: Engine, path: str, arguments: dict[str, Any]
) -> None:
    set_k(engine, 3)  # a schedule that names the classes
    before = total(engine, names.DRAFTS, "traffic_class")
    limits = dict.fromkeys(("max_output_tokens",) if path == "/v1/responses" else ("max_tokens",), 16)
    body = {"model": "demo", "temperature": 0, "vllm_xargs": {"traffic_class": "chat"}, **limits, **arguments}
    status, answer, _ = call(f"{engine.url}{path}", "POST", body, headers={"X-Traffic-Class": "json"}, timeout_s=120.0)
    assert status == 200, answer
    after = total(engine, names.DRAFTS, "traffic_class")
    assert {name for (name,), count in after.items() if count > before.get((name,), 0.0)} == {"json"}


def test_a_conversation_that_decoded_without_drafter_speculates_in_its_next_turn(engine: Engine) -> None:
    """Blocks that the drafter has not seen leave the prefix cache, so the next turn prefills and drafts as ever."""
    question = [{"role": "user", "content": "Tell me what a dictionary is, and name the methods that it has. " * 8}]

    def second_turn_acceptance(first_k: int, opening: str) -> float:
        first = [{"role": "system", "content": opening}, *question]
        set_k(engine, first_k)
        said = chat(engine, first, max_tokens=160)["choices"][0]["message"]["content"]
        set_k(engine, 7)
        turn = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
        found = chat(engine, turn, max_tokens=160)["metrics"]["speculative_decoding"]
        assert found["num_draft_tokens"] > 0
        return float(found["mean_acceptance_length"])

    whole = second_turn_acceptance(7, "You answer in full.")
    holed = second_turn_acceptance(0, "You answer in  full.")
    same = second_turn_acceptance(0, "You answer in full.")
    assert same == pytest.approx(whole, rel=0.02)
    assert holed > 1.0


def test_a_running_request_speculates_as_soon_as_k_rises_again(engine: Engine) -> None:
    set_k(engine, 0)
    before = total(engine, names.STEPS, names.LABEL_KIND).get((names.CATCH_UP,), 0.0)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(chat, engine, prompts(3)[0][1]["messages"], max_tokens=1000)
        until(lambda: counters(engine.url, names.BACKLOG_TOKENS).get((), 0.0) > 20 or long.done(), every=0.05)
        set_k(engine, 5)
        assert not long.done()
        spent = long.result()["metrics"]["speculative_decoding"]
    assert spent["num_draft_tokens"] > 500
    assert total(engine, names.STEPS, names.LABEL_KIND)[names.CATCH_UP,] > before
    assert counters(engine.url, names.BACKLOG_TOKENS)[()] == 0


def test_the_time_of_decoding_is_that_of_all_steps_but_catch_ups_without_the_time_of_their_prompts(
    engine: Engine,
) -> None:
    seconds = total(engine, names.STEP_SECONDS, names.LABEL_KIND)
    decoding_s = counters(engine.url, names.DECODE_SECONDS)[()]
    assert seconds["decode",] < decoding_s < seconds["decode",] + seconds["prefill",]


def test_prompts_that_are_prefilled_in_parts_keep_their_seeds(engine: Engine) -> None:
    set_k(engine, 0)
    words = "Read this, and then go on. " * 220  # two such prompts are more than a step takes
    asked = [[{"role": "user", "content": f"{number}. {words}"}] for number in range(4)]

    def reply(number: int) -> str:
        answer = chat(engine, asked[number], temperature=1.0, seed=number, max_tokens=24)
        assert answer["usage"]["prompt_tokens"] > 1024
        return str(answer["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(reply, range(len(asked))))
    assert together == [reply(number) for number in range(len(asked))]
    assert len(set(together)) == len(asked)


def test_log_probabilities_of_named_tokens_are_refused_beside_drafts(engine: Engine) -> None:
    body = {"model": "demo", "prompt": "Tell me", "max_tokens": 8, "logprobs": 1, "logprob_token_ids": [5]}
    status, answer, _ = call(f"{engine.url}/v1/completions", "POST", body)
    assert status == 400
    assert "logprob_token_ids" in answer["error"]["message"]


def test_structured_output_stays_valid_while_k_changes(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "item", "schema": schema}}
    for k in (7, 0, 3):
        set_k(engine, k)
        for reply in crowd(engine, 6, response_format=form, ignore_eos=False, max_tokens=200):
            choice = reply["choices"][0]
            if choice["finish_reason"] == "stop":
                found = json.loads(choice["message"]["content"])
                assert set(found) == {"name", "count"}


def test_without_a_token_this_machine_is_let_in_and_a_body_is_bounded(engine: Engine) -> None:
    assert call(f"{engine.url}/speculation", headers={"Authorization": "Bearer whatever"})[0] == 200
    assert call(f"{engine.url}/speculation", "PUT", b'"' + b"x" * (1 << 20) + b'"')[0] == 413

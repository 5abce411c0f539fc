import json
from typing import Any

import pytest

from specpilot.gateway.wire.request_facts import RequestFacts, read_facts

PATH = "/v1/chat/completions"


def facts(**fields: Any) -> RequestFacts:
    return read_facts(PATH, json.dumps({"model": "m", **fields}).encode())


def test_facts() -> None:
    found = facts(
        stream=True,
        tools=[{}],
        response_format={"type": "json_object"},
        max_completion_tokens=7,
        max_tokens=9,
        messages=[
            {"role": "user", "content": "four"},
            {"content": [{"type": "text", "text": "six..."}, {"image": "x"}]},
        ],
        metadata={"traffic_class": "batch"},
        service_tier="flex",
    )
    assert found.stream
    assert found.has_tools
    assert found.has_response_format
    assert found.max_tokens == 7
    assert found.prompt_chars == 10
    assert found.requested_class == "batch"
    assert found.service_tier == "flex"


def test_facts_that_are_not_there() -> None:
    found = facts(stream=None, metadata=[], service_tier=3, max_tokens="nine", prompt=["ab", "c"], tools=[])
    assert not found.stream
    assert not found.has_tools
    assert not found.has_response_format
    assert found.max_tokens is None
    assert found.prompt_chars == 3
    assert found.requested_class is None
    assert found.service_tier is None


def test_work_grows_with_prompt_and_output_and_is_bounded() -> None:
    assert facts(max_tokens=10).work_tokens < facts(max_tokens=1000).work_tokens
    assert facts(prompt="x" * 40).work_tokens < facts(prompt="x" * 4000).work_tokens
    assert facts(prompt="x" * 10_000_000, max_tokens=10**9).work_tokens == 8192 + 4096
    assert facts(max_tokens=-5).work_tokens >= 0


def test_what_is_charged_has_no_bound_that_a_client_could_use() -> None:
    found = read_facts(PATH, json.dumps({"model": "m", "prompt": "x" * 400_000, "max_tokens": 50_000}).encode())
    assert found.charged_tokens > 150_000
    assert found.work_tokens == 8192 + 4096


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        ("/v1/responses", {"max_tokens": 1, "max_completion_tokens": 1}, None),
        ("/v1/responses", {"max_tokens": 1, "max_output_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_output_tokens": 1}, None),
        ("/v1/chat/completions", {"max_tokens": 1, "max_completion_tokens": 9}, 9),
        ("/v1/chat/completions", {"max_tokens": 9, "max_completion_tokens": None}, 9),
        ("/v1/chat/completions", {"max_tokens": "9"}, 9),
        ("/v1/chat/completions", {"max_tokens": 9.0}, 9),
        ("/v1/completions", {"max_tokens": 9, "max_completion_tokens": 1, "max_output_tokens": 1}, 9),
        ("/v1/messages", {"max_tokens": 9, "max_completion_tokens": 1, "max_output_tokens": 1}, 9),
        ("/invocations", {"messages": [], "max_completion_tokens": 9, "max_tokens": 1}, 9),
        ("/invocations", {"prompt": "a", "max_completion_tokens": 1, "max_tokens": 9}, 9),
        ("/invocations", {"prompt": "a", "messages": 5, "max_completion_tokens": 1}, None),
    ],
)
def test_a_limit_is_what_the_route_honours(path: str, fields: dict[str, Any], limit: int | None) -> None:
    assert read_facts(path, json.dumps({"model": "m", **fields}).encode()).max_tokens == limit


@pytest.mark.parametrize(
    ("background", "is_endless"), [(True, True), ("yes", True), (1, True), (0, False), ("no", False)]
)
def test_a_response_in_the_background_is_endless_whatever_other_routes_call_a_limit(
    background: object, is_endless: bool
) -> None:
    body = {"model": "m", "input": "a", "background": background, "max_tokens": 1}
    assert read_facts("/v1/responses", json.dumps(body).encode()).is_endless is is_endless


def test_token_ids_are_no_text() -> None:
    found = facts(prompt=["ab", ["c"]], messages=[{"content": [{"text": "de"}, "f"]}], input=[*range(1000)])
    assert found.prompt_chars == 6

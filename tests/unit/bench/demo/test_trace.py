"""A trace with its defaults filled in."""

import json
from pathlib import Path

import pytest

from specpilot.bench.demo.trace import REPLY_TOKENS, TRACES, Kind, LoadPhase, Trace, read_prompts, read_trace
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.codec import from_plain
from specpilot.policy.errors import InvalidDocumentError


def phase(demand: str, temperature: float = 0.5) -> str:
    return f'{{"phases": [{{"name": "p", "seconds": 3, "demand": {demand}, "temperature": {temperature}}}]}}'


def test_a_stream_is_of_the_class_and_the_prompts_that_its_name_says() -> None:
    [found] = from_plain(Trace, json.loads(phase('{"code": 3}'))).phases
    assert found.streams == {Kind("code", "code", 0.5, REPLY_TOKENS): 3}


def test_what_a_stream_says_itself_comes_first_and_alike_ones_add_up() -> None:
    text = '{"code": 3, "again": {"count": 2, "traffic_class": "code", "prompts": "code"},'
    text += '"hot": {"count": 1, "traffic_class": "chat", "prompts": "long-context", "temperature": 0,'
    text += '"reply_tokens": [5, 9]}}'
    trace = from_plain(Trace, json.loads(phase(text)))
    assert trace.phases[0].streams == {
        Kind("code", "code", 0.5, REPLY_TOKENS): 5,
        Kind("chat", "long-context", 0.0, (5, 9)): 1,
    }
    assert trace.prompts == ("code", "long-context")


@pytest.mark.parametrize(
    ("demand", "fault"),
    [
        ("{}", "at least one stream"),
        ('{"code": 0}', "at least 1 request"),
        ('{"code": {"count": 0}}', "at least 1 request"),
        ('{"Code": 1}', "demand.Code is not a class name"),
        ('{"code": {"count": 1, "traffic_class": "A B"}}', "demand.code.traffic_class"),
        ('{"code": {"count": 1, "reply_tokens": [9, 5]}}', "demand.code.reply_tokens"),
        ('{"code": {"count": 1, "prompt": "x"}}', "prompt"),
    ],
)
def test_what_is_wrong_is_named(demand: str, fault: str) -> None:
    with pytest.raises(InvalidDocumentError, match=fault):
        from_plain(Trace, json.loads(phase(demand)))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"phases": []}', "must not be empty"),
        ('{"phases": [{"name": "x", "seconds": 0, "demand": {"code": 1}}]}', "seconds is 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InvalidDocumentError, match=fault):
        read_trace(path)


def test_a_longer_trace_is_the_same_otherwise() -> None:
    trace = Trace((LoadPhase("p", 3.0, {"code": 1}, 1.0),))
    assert trace.stretched(2.0).phases == (LoadPhase("p", 6.0, {"code": 1}, 1.0),)


def test_the_shipped_traces_find_their_prompts() -> None:
    for path in TRACES.glob("*.json"):
        names = read_trace(path).prompts
        prompts = read_prompts(DEMO_MODEL / "prompts", names)
        assert set(prompts) == set(names)
        assert all(len(items) >= 100 for items in prompts.values())
        assert all(item["messages"][-1]["role"] == "user" for items in prompts.values() for item in items)

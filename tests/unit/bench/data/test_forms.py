"""Files in published forms become conversations; the error about a broken line names it."""

import json

import pytest

from specpilot.bench.data.forms import HUMAN_EVAL_REQUEST, BrokenDataError, parse

GOOD = {
    "mt-bench": ({"question_id": 81, "category": "writing", "turns": ["One?", "Two?"]}, ["One?", "Two?"]),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""}, [HUMAN_EVAL_REQUEST + "def f():\n"]),
    "speed-bench": ({"question_id": "1", "turns": ["One?", "Two?"], "multiturn": True}, ["One?", "Two?"]),
    "sharegpt": (
        {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
        ["Hi"],
    ),
    "custom": ({"prompt": "Hello"}, ["Hello"]),
}


@pytest.mark.parametrize("form", GOOD)
def test_a_record_in_the_forms_own_shape_is_read(form: str) -> None:
    record, texts = GOOD[form]
    [conversation] = parse(form, json.dumps(record) + "\n\n", "file")
    assert [turn[-1]["content"] for turn in conversation.turns] == texts


def test_share_gpt_is_a_json_list_too_and_skips_what_no_human_begins() -> None:
    record = GOOD["sharegpt"][0]
    other = {"id": "b", "conversations": [{"from": "gpt", "value": "Yo"}]}
    assert len(parse("sharegpt", json.dumps([record, other]), "file")) == 1


def test_speed_bench_as_prepared_for_clients_has_messages() -> None:
    record = {"messages": [{"role": "user", "content": "One?"}, {"role": "user", "content": "Two?"}]}
    [conversation] = parse("speed-bench", json.dumps(record), "file")
    assert len(conversation.turns) == 2


def test_a_custom_line_may_bring_messages_tools_and_a_length() -> None:
    record = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "max_tokens": 7,
    }
    [conversation] = parse("custom", json.dumps(record), "file")
    assert conversation.max_tokens == 7
    assert len(conversation.tools) == 1
    assert [message["role"] for message in conversation.turns[0]] == ["system", "user"]


def test_a_message_that_calls_tools_needs_no_content_and_one_may_have_parts() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Read it."}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]},
        {"role": "tool", "tool_call_id": "a", "content": "it"},
    ]
    [conversation] = parse("custom", json.dumps({"messages": messages}), "file")
    assert list(conversation.turns[0]) == messages


@pytest.mark.parametrize(
    ("form", "line", "said"),
    [
        ("custom", "{", "line 2: not JSON"),
        ("custom", "[]", "line 2: is a list; it must be a JSON object"),
        ("custom", '{"prompt": "a", "turns": ["b"]}', "line 2: needs exactly one of prompt, turns and messages"),
        ("custom", '{"prompt": 3}', "line 2: prompt must be a list of texts"),
        ("custom", '{"prompt": "a", "max_tokens": "many"}', "line 2: max_tokens must be a whole number"),
        ("custom", '{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens is 0"),
        (
            "custom",
            '{"messages": [{"role": "assistant", "content": "x"}]}',
            "line 2: messages ends with an assistant's",
        ),
        ("mt-bench", '{"question_id": 1}', "line 2: field 'turns' is missing"),
        ("mt-bench", '{"turns": []}', "line 2: turns must be a list of texts with at least one"),
        ("humaneval", '{"prompt": null}', "line 2: prompt must be a text"),
        ("sharegpt", '{"id": 1}', "line 2: field 'conversations' is missing"),
        ("sharegpt", '{"conversations": [{"from": "human", "value": null}]}', "line 2: value must be a text"),
        ("sharegpt", '{"conversations": ["hi"]}', "line 2: conversations must be a list of objects"),
        ("speed-bench", '{"messages": ["hi"]}', "line 2: each of messages must be an object with a role"),
        ("speed-bench", '{"messages": [{"role": "system", "content": "x"}]}', "line 2: content of a user's messages"),
        (
            "speed-bench",
            '{"messages": [{"role": "user", "content": null}]}',
            "line 2: each of messages must have content",
        ),
        ("custom", '{"messages": [{"role": "user"}]}', "line 2: each of messages must have content"),
        ("custom", '{"messages": [{"role": "user", "content": null}]}', "line 2: each of messages must have content"),
    ],
)
def test_a_broken_line_is_named_with_what_is_wrong(form: str, line: str, said: str) -> None:
    text = json.dumps(GOOD[form][0]) + "\n" + line + "\n"
    with pytest.raises(BrokenDataError, match=r"^prompts\.jsonl, ") as caught:
        parse(form, text, "prompts.jsonl")
    assert said in str(caught.value)


def test_an_empty_file_is_said_to_be_empty() -> None:
    with pytest.raises(BrokenDataError, match="holds no conversation"):
        parse("custom", "\n", "file")

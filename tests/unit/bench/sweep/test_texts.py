"""The data sets of a sweep."""

from pathlib import Path

import pytest

from specpilot.bench.sweep.texts import SHIPPED, BrokenDataError, data_set


def test_shipped_prompts_are_chats_and_mixed_ones_take_turns() -> None:
    sets = {name: data_set(name) for name in SHIPPED}
    assert all(prompt.messages[-1]["role"] == "user" for item in sets.values() for prompt in item.prompts)
    mixed = data_set("mixed").prompts
    assert [prompt.messages for prompt in mixed[3:6]] == [sets[name].prompts[1].messages for name in SHIPPED]


def test_lengths_vary_about_the_mean_are_the_same_every_time_and_keep_to_what_a_prompt_allows(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "output_tokens": 7}\n')
    mine = data_set(str(path))
    assert (mine.name, mine.flags) == ("mine", ())
    requests = mine.requests(400, 0, 100)
    assert requests[100:] == mine.requests(300, 100, 100)
    assert {request.output_tokens for request in requests[1::2]} == {7}
    lengths = [request.output_tokens or 0 for request in requests[::2]]
    assert 50 <= min(lengths) < 60
    assert 140 < max(lengths) <= 150
    assert sum(lengths) / len(lengths) == pytest.approx(100, rel=0.1)


def test_what_is_neither_shipped_nor_a_file_is_the_clients_own() -> None:
    assert data_set("random").flags == ("--dataset-name", "random")
    assert data_set("hf=philschmid/mt-bench").flags == ("--dataset-name", "hf", "--dataset-path", "philschmid/mt-bench")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
        ("[]\n", "line 1: must be a JSON object with prompt or messages"),
        ('{"prompt": 1}\n', "line 1: prompt must be a text"),
        ('{"messages": []}\n', "line 1: messages must be a list of messages"),
        ('{"prompt": "a", "output_tokens": 0}\n', "line 1: output_tokens must be a whole number"),
        ("\n", "holds no prompt"),
    ],
)
def test_a_broken_line_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(text)
    with pytest.raises(BrokenDataError, match=said):
        data_set(str(tmp_path / "mine.jsonl"))

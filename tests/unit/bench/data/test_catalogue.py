"""Data sets are named, generated or read; the error about a missing one says how to get it."""

from pathlib import Path

import pytest

from specpilot.bench.data.catalogue import DEMO, PUBLISHED, data_sets
from specpilot.bench.data.forms import BrokenDataError
from specpilot.bench.data.shipped import CONVERSATIONS, SHIPPED, conversations


@pytest.mark.parametrize("name", [*DEMO, *SHIPPED])
def test_what_is_here_needs_no_file(name: str) -> None:
    [found] = data_sets([name])
    assert found.name == name
    assert len(found.conversations) >= CONVERSATIONS


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_data_set_is_the_same_every_time_and_not_one_prompt(name: str) -> None:
    assert conversations(name) == conversations(name)
    assert len({str(item.turns) for item in conversations(name)}) > CONVERSATIONS // 4


def test_long_contexts_are_as_long_as_asked_for() -> None:
    for name in ("long-context", "retrieval"):
        short, long = (
            len(str(conversations(name, words, 1)[0].turns[0][0]["content"]).split()) for words in (200, 4000)
        )
        assert 200 <= short < 300
        assert 4000 <= long < 4600


def test_multi_turn_has_turns_and_tool_calls_have_tools() -> None:
    assert all(len(item.turns) == 4 for item in conversations("multi-turn"))
    assert all(item.tools for item in conversations("tool-calls"))


def test_a_file_of_ones_own_is_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "support.jsonl"
    path.write_text('{"prompt": "Hi"}\n')
    [found] = data_sets([str(path)])
    assert found.name == "support"


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_not_shipped_says_where_it_is(name: str) -> None:
    with pytest.raises(BrokenDataError, match=f"{name}=PATH"):
        data_sets([name])


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (["prose"], "there is no data set 'prose'"),
        (["mt-bench=/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["code", "code"], "named twice"),
    ],
)
def test_a_wrong_name_is_an_error_with_its_remedy(items: list[str], said: str) -> None:
    with pytest.raises(BrokenDataError, match=said):
        data_sets(items)

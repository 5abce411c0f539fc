"""A page that is read again and again says what it says when it is read for the first time."""

import random

import pytest

from specpilot.controller.estimation.observation import Series
from specpilot.controller.telemetry import exposition
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy import engine_metrics as names


def line(band: int, position: int, value: object) -> str:
    return f'{names.TRIALS}{{model_name="m",band="{band}",position="{position}"}} {value}'


def changed(rng: random.Random, lines: list[str]) -> list[str]:
    """The page's next version: values that grow, and at times what a page may do besides."""
    found = [item if rng.random() < 0.8 else line(at % 8, at // 8, rng.randrange(9)) for at, item in enumerate(lines)]
    odd = rng.random()
    if odd < 0.1:
        found.insert(rng.randrange(len(found)), line(9, rng.randrange(9), 1))
    elif odd < 0.2:
        found.pop(rng.randrange(len(found)))
    elif odd < 0.3:
        found[rng.randrange(len(found))] = rng.choice(
            ["# HELP", "other_total 3", line(1, 1, "NaN"), line(2, 1, -1), "", "x{"]
        )
    elif odd < 0.4:
        found[0], found[-1] = found[-1], found[0]
    return found


def test_every_version_of_a_page_is_read_as_if_it_were_the_first() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        lines = [line(at % 8, at // 8, at) for at in range(40)]
        reader = PageReader()
        for _ in range(40):
            text = "\n".join(lines)
            assert reader.read(text) == PageReader().read(text)
            lines = changed(rng, lines)


def test_lines_that_did_not_change_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    read = exposition._read

    def counted(text: str) -> tuple[Series | None, float | None]:
        nonlocal count
        count += 1
        return read(text)

    monkeypatch.setattr(exposition, "_read", counted)
    lines = [line(at % 8, at // 8, at) for at in range(1000)]
    reader = PageReader()
    before = reader.read("\n".join(lines))
    assert count == 1000
    lines[7] = line(7, 0, 99.0)
    after = reader.read("\n".join(lines))
    assert count == 1001
    assert [series for series in after if after[series] != before[series]] == [next(iter(PageReader().read(lines[7])))]
    assert before != after

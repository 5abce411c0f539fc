"""`specpilot bench simulate`: the real law on a GPU plant, in a table that says what it is."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.simulation import command
from tests.simulation.cell import Play, Result, played
from tests.simulation.gpu_plants import plants
from tests.simulation.published import loads, texts
from tests.support.stack import ROOT

PLANT = plants()["b200-30b-a3b-fp8"]
PLAY = Play(seconds=8, reply_tokens=500.0, seed=0)


@cache
def of_code(in_flight: int) -> Result:
    return played(PLANT, [texts()["humaneval"].running(in_flight)], PLAY)


@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_single_k_yields_what_the_plant_and_the_published_length_come_to(in_flight: int) -> None:
    found = of_code(in_flight)
    for k, length in ((0, 1.0), (3, 3.02), (7, 3.94)):
        assert found.single[k] == pytest.approx(PLANT.tokens_per_s(in_flight, k, length), rel=0.05), k


def test_the_law_reaches_the_best_single_k_of_a_text() -> None:
    found = of_code(8)
    assert found.over(found.best_k) >= 0.96
    assert found.over(0) > 1.5


def test_the_law_tells_texts_apart_that_no_label_names() -> None:
    code, context = texts()["humaneval"].running(32), texts()["context-100k"].running(32)
    found = played(PLANT, [code, context], replace(PLAY, seconds=4))
    assert found.k[0] >= found.k[1] + 2
    assert found.over(7) > 1.02


def test_the_table_is_marked_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--plant", PLANT.name, "--loads", "mixed", "--concurrency", "1,4", "--seconds", "2"]
    command.main([*flags, "--out", str(tmp_path)])
    text = (tmp_path / f"{PLANT.name}.md").read_text()
    assert text.strip() in capsys.readouterr().out
    assert "SIMULATION" in text.splitlines()[0].upper()
    assert "## mixed (SIMULATION)" in text
    rows = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    assert [row.split("|")[1].strip() for row in rows] == ["4"]  # one request cannot be a mixture
    assert len(rows[0].split("|")[2].split("/")) == 3


def test_plants_and_loads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--list"])
    said = capsys.readouterr().out
    assert "simulation" in said
    assert all(name in said for name in [*plants(), *loads()])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--plant", "gb300"], "--plant: there is no plant 'gb300'; there are b200-30b-a3b-fp8"),
        (["--loads", "poetry"], "--loads: 'poetry' is none of humaneval"),
        (["--concurrency", "0,4"], "--concurrency: '0,4' is not a list of whole numbers from 1 to 512"),
        (["--concurrency", "x"], "--concurrency: 'x' is not a list of whole numbers"),
    ],
)
def test_what_cannot_be_simulated_is_said(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_every_setting_plant_and_load_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "bench.md").read_text()
    page = page.split("## `specpilot bench simulate`")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE))
    fields = command.SimulateSettings.model_fields
    settings = {field.alias or name for name, field in fields.items()}
    assert documented == settings | plants().keys() | loads().keys()

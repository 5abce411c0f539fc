"""`specpilot bench ablate`: the law without one idea, beside the law with all, over the same traffic."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.ablations import IDEAS, without
from specpilot.bench.simulation import ablate
from specpilot.bench.simulation.traces import traces
from specpilot.controller.law.control_group import ControlGroup
from specpilot.engine_adapter.evidence import request_acceptance
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.law import batch_choice, price_fit
from specpilot.engine_adapter.law.prices import Prices


def test_what_an_idea_is_worth_is_told_in_a_table_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--ideas", "bands", "--traces", "uncalibrated", "--seeds", "2"]
    ablate.main([*flags, "--out", str(tmp_path)])
    said, text = capsys.readouterr().out, (tmp_path / "ablations.md").read_text()
    assert text in said
    assert "SIMULATION" in text.splitlines()[0]
    assert "4 of 4 plays" in said
    left = json.loads(said.splitlines()[-1])["bands"]["uncalibrated"]
    assert left["low"] < left["mean"] < left["high"]
    assert left["mean"] < -0.03  # bands pay there
    assert re.search(rf"\| bands \| {1 + left['mean']:.3f} ± [0-9.]+ \| {1 + left['mean']:.3f} \|", text)
    assert "2 seeds (0 to 1)" in text
    worst = re.findall(r"^\| bands \| ([0-9.]+) ± [0-9.]+ \(([123])\) \|$", text, re.MULTILINE)
    assert len(worst) == 1
    assert float(worst[0][0]) <= 1 + left["mean"]


def test_seeds_count_from_the_first_and_pair_the_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed has another rate, so only plays of one seed beside each other give an interval of no width."""
    seen: list[tuple[str, int]] = []

    def rates_of(plays: Sequence[Any], _: int) -> Iterator[tuple[Any, list[float]]]:
        for play in plays:
            seen.append((play.idea, play.seed))
            gains = (0.0, -0.1, 0.0) if play.idea else (0.0, 0.0, 0.0)
            yield play, [play.seed + gain for gain in gains]

    monkeypatch.setattr(ablate, "_played", rates_of)
    flags = ["--ideas", "guidance", "--traces", "uncalibrated", "--first-seed", "201", "--seeds", "3"]
    ablate.main([*flags, "--out", str(tmp_path)])
    assert seen == [(idea, seed) for seed in (201, 202, 203) for idea in ("", "guidance")]
    text = (tmp_path / "ablations.md").read_text()
    assert "3 seeds (201 to 203)" in text
    assert "| guidance | 0.970 ± 0.000 | 0.970 |" in text  # exp(-0.1 * 15 s / 50 s)
    assert "| guidance | 0.905 ± 0.000 (2) |" in text


def in_force() -> dict[str, Any]:
    """What each idea rests on."""
    return {
        "bands": request_acceptance.band_of,
        "first-drafts": Evidence.add_drafts,
        "cold-start": batch_choice.UNPROBED_RATIO,
        "left-out": Prices.catch_up_s,
        "cost-learning": price_fit.StepCost.note,
        "slowdown": price_fit.SLOWDOWN_SHARE,
        "pauses": price_fit.PAUSE,
        "fall-back": ControlGroup._test,
    }


def test_each_idea_is_switched_off_alone_and_for_as_long_as_it_is_asked_for() -> None:
    whole = in_force()
    assert set(whole) == set(IDEAS)
    for idea in IDEAS:
        with without(idea):
            found = in_force()
        assert {name for name in whole if found[name] != whole[name]} == {idea}
        assert in_force() == whole


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ideas", "luck"], f"--ideas: 'luck' is none of {', '.join(IDEAS)}"),
        (["--traces", "moon"], f"--traces: 'moon' is none of {', '.join(traces())}"),
        (["--seeds", "1"], "--seeds"),
        (["--first-seed", "-1"], "--first-seed"),
    ],
)
def test_what_is_not_known_is_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ablate.main(flags)
    assert said in capsys.readouterr().err

"""`specpilot bench ablate`: the law without one idea, beside the law with all, over the same traffic."""

import json
import re
from pathlib import Path

import pytest

from specpilot.bench.ablations import IDEAS
from specpilot.bench.simulation import ablate
from specpilot.bench.simulation.traces import traces


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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ideas", "luck"], f"--ideas: 'luck' is none of {', '.join(IDEAS)}"),
        (["--traces", "moon"], f"--traces: 'moon' is none of {', '.join(traces())}"),
        (["--seeds", "1"], "--seeds"),
    ],
)
def test_what_is_not_known_is_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ablate.main(flags)
    assert said in capsys.readouterr().err

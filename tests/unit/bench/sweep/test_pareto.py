"""The picture of a sweep: throughput over the speed of a user."""

from xml.etree import ElementTree as ET

import pytest

from specpilot.bench.sweep import pareto, pareto_picture
from specpilot.bench.sweep.report import Results, markdown
from tests.unit.bench.sweep.test_report import Cell, cell


def cells() -> list[Cell]:
    """K = 3 is better than adaptive K at 8 requests, and worse at one."""
    rows = (("adaptive", None, 1, 200.0, 5.0), ("adaptive", None, 8, 800.0, 10.0), ("none", None, 8, 500.0, 20.0))
    rows += (("p-eagle", 3, 1, 150.0, 6.0), ("p-eagle", 3, 8, 900.0, 9.0))
    return [cell(system, k, load, 1, rate, median_tpot_ms=tpot) for system, k, load, rate, tpot in rows]


def test_a_line_is_an_arm_and_its_points_are_loads() -> None:
    lines = pareto_picture.lines_of(Results(cells()), "code")
    assert lines == {
        "none": [(50.0, 500.0)],
        "p-eagle-k3": [(1000 / 6, 150.0), (1000 / 9, 900.0)],
        "adaptive": [(200.0, 200.0), (100.0, 800.0)],
    }
    drawn = pareto_picture.picture(cells())
    assert drawn is not None
    ET.fromstring(drawn)
    assert pareto_picture.picture([item for item in cells() if item["load"] == "c8"]) is None


def test_the_report_names_the_arms_that_adaptive_k_lies_under() -> None:
    text = markdown(cells())
    assert "| code | 1 in flight | adaptive | 200.0 | 200 | none |" in text
    assert "| code | 8 in flight | adaptive | 100.0 | 800 | p-eagle-k3 |" in text


def test_it_is_a_sweep_with_other_defaults_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pareto.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "usage: specpilot bench pareto" in told
    assert "K of the EAGLE-3 and P-EAGLE arms, comma separated (default: 0,1,3,5,7)" in told
    settings = pareto.ParetoSettings()
    assert (settings.data, settings.concurrency, settings.max_num_seqs) == ("mixed", "1,2,4,8,16,32", 32)

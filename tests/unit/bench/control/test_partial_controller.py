"""A controller without ideas of its law, and the law as it is afterwards."""

import pytest

from specpilot.bench.ablations import CONSTANTS
from specpilot.bench.control import partial_controller
from specpilot.controller import __main__ as controller
from specpilot.controller import app
from specpilot.controller.law.hold_out import HoldOut
from specpilot.controller.tuning import Tuning


def test_the_ideas_are_off_in_this_controller_only(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, seen = HoldOut._judge, []
    monkeypatch.setattr(controller, "main", lambda flags: seen.append((flags, app.Tuning(), HoldOut._judge)))
    partial_controller.main(["evening,guard", "--port", "0"])
    [(flags, tuning, judged_by)] = seen
    assert flags == ["--port", "0"]
    assert tuning.even_ratio == CONSTANTS["evening"]["even_ratio"] != Tuning().even_ratio
    assert judged_by is not judge
    assert (app.Tuning, HoldOut._judge) == (Tuning, judge)

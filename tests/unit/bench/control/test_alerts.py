"""`bench alerts`: every alert has a fault, and quick rules differ from the rules in their durations alone."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specpilot.bench.control.alert_faults import FAULTS
from specpilot.bench.control.alert_rules import alerts_in, quickened
from specpilot.bench.control.alerts import RULES, faults_of, markdown
from specpilot.bench.control.false_controller import BELIEVES, FAILS, believed, erring
from specpilot.controller.estimation.observation import Series
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy.bands import BANDS
from specpilot.policy.engine_metrics import ACCEPTS, TRIALS
from specpilot.policy.model_policy import Policy

TEXT = RULES.read_text()


def test_every_alert_has_its_fault() -> None:
    made = [alert for fault in FAULTS.values() for alert in fault.alerts]
    assert sorted(made) == sorted(alerts_in(TEXT))


def test_quick_rules_differ_in_their_durations_alone() -> None:
    quick = quickened(TEXT, 60.0)
    durations = re.compile(r"\[\w+\]|offset \w+|for: \w+")
    assert durations.sub("", quick) == durations.sub("", TEXT)
    assert "rate(specpilot_engine_drafts_total[60000ms] offset 60000ms)" in quick
    assert set(re.findall(r"\[(\w+)\]", quick)) == {"5000ms", "10000ms", "60000ms"}
    assert "for: 30000ms" in quick  # a day, at most
    assert "for: 500ms" in quick
    assert "> 20" in quick


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_prometheus_takes_quick_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(quickened(TEXT, 60.0))
    command = ["promtool", "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"{len(alerts_in(TEXT)) + BANDS} rules found" in done.stdout, done.stderr


def test_the_erring_controller_reads_every_trial_as_an_accept() -> None:
    seen = {Series(TRIALS, ("3", "1")): 10.0, Series(ACCEPTS, ("3", "1")): 2.0, Series("other", ()): 1.0}
    assert believed(seen) == {**seen, Series(ACCEPTS, ("3", "1")): 10.0}


def test_a_controller_errs_as_the_file_says_and_only_while_it_says_so(tmp_path: Path) -> None:
    file, reader = tmp_path / "belief", PageReader()
    page = f'{TRIALS}{{model_name="m",band="3",position="1"}} 10\n{ACCEPTS}{{model_name="m",band="3",position="1"}} 2\n'
    accepts = Series(ACCEPTS, ("3", "1"))
    with erring(file):
        assert reader.read(page)[accepts] == 2.0
        file.write_text(BELIEVES)
        assert reader.read(page)[accepts] == 10.0
        file.write_text(FAILS)
        with pytest.raises(RuntimeError, match="injected failure"):
            ControlLaw().decide(PoolContext("m", "p", Policy("m"), 7, 3, None), 0.0, 0.0)
        assert reader.read(page)[accepts] == 2.0
    file.write_text(BELIEVES)
    assert reader.read(page)[accepts] == 2.0


def test_what_did_not_fire_and_what_should_not_have_is_said() -> None:
    held = {"says": "Redis stopped", "fired_after_s": {"A": 3.2, "B": None}, "also_fired_after_s": {"C": 1.0}}
    found = {"faster": 60.0, "faults": {"redis": held}, "calm": ["D"], "rule_faults": []}
    assert faults_of(found) == ["D fired in the calm", "B did not fire under redis"]
    assert "| `A` | Redis stopped | 3 s |\n| `B` | Redis stopped | never |" in markdown(found)
    seen = {"E": {"pending": 5.0, "firing": 0.0}, "F": {"pending": 0.0, "firing": 5.0}}
    assert faults_of({"seen_s": seen, "rule_faults": ["G: no"]}) == ["rule G: no", "F fired over the quiet load"]

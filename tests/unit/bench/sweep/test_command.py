"""What `specpilot bench sweep` measures over real sockets: its cells, their requests, and what its page says of it."""

import re
from collections import Counter
from pathlib import Path

import pytest

from specpilot.bench.data.catalogue import DEMO
from specpilot.bench.data.forms import FORMS
from specpilot.bench.data.shipped import SHIPPED
from specpilot.bench.sweep import command, measure
from specpilot.bench.sweep.systems import SystemFailedError
from tests.support.scripted_engine import Script, Seen, reply
from tests.support.sweep_endpoint import Endpoint, cells, sweep


async def test_a_sweep_over_endpoints_measures_every_cell_and_sets_k_where_it_can(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    url = endpoint.url
    assert await sweep(tmp_path, f"none={url},p-eagle={url}/v1", "--k", "1,3", "--repetitions", "2") == 0
    found = cells(tmp_path)
    assert len(found) == 3 * 2 * 2
    cell = found["p-eagle-k3__adversarial__c2__1"]
    assert cell["spec_decode_acceptance_length"] == pytest.approx(3.0)
    assert (cell["completed"], cell["total_output_tokens"]) == (6, 24)
    assert cell["max_concurrency"] == 2
    assert {1, 3} == set(endpoint.ks[:-1])
    assert "| p-eagle-k3 |" in (tmp_path / "report.md").read_text()
    assert "<svg" in (tmp_path / "report.html").read_text()


async def test_a_cell_has_whole_conversations_three_for_each_in_flight(endpoint: Endpoint, tmp_path: Path) -> None:
    data = tmp_path / "four.jsonl"
    data.write_text('{"turns": ["1?", "2?", "3?", "4?"]}\n')
    more = ("--repetitions", "1", "--data", str(data), "--concurrency", "4", "--num-prompts", "13")
    assert await sweep(tmp_path, f"none={endpoint.url}", *more) == 0
    [cell] = cells(tmp_path).values()
    assert cell["num_prompts"] == 4 * 12
    firsts = [asked for asked in endpoint.asked if len(asked["messages"]) == 1]
    assert len(firsts) == 6 + 12  # 6 to warm up


async def test_a_system_is_warmed_up_again_after_each_start(endpoint: Endpoint, tmp_path: Path) -> None:
    asked = f"none={endpoint.url},mine={endpoint.url}"
    assert await sweep(tmp_path, asked, "--repetitions", "1", "--one-at-a-time") == 0
    assert len(endpoint.asked) == 2 * (6 + 3 + 6)


async def test_cells_share_no_prefix_cache(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await sweep(tmp_path, f"adaptive={endpoint.url}", "--repetitions", "1", "--settle-s", "0.05") == 0
    salts = Counter(asked["cache_salt"] for asked in endpoint.asked)
    assert {6, 3} <= {*salts.values()}
    assert len(salts) == 2 * 3  # warm-up and two cells, what settles before each apart


async def test_acceptance_of_an_sglang_server_is_the_mean_of_what_it_shows_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "LENGTH_EVERY_S", 0.05)
    engine = Endpoint(slow_s=0.1)
    play = engine.play

    def sglang(seen: Seen) -> Script:
        if seen.path != "/metrics":
            return play(seen)
        length = 2.0 if len(engine.asked) <= 6 else 3.0  # 2 is of the warm-up
        return [reply(f"# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length {length}\n".encode())]

    engine.choose = sglang
    await engine.start()
    assert await sweep(tmp_path, f"mine={engine.url}", "--repetitions", "1") == 0
    cell = cells(tmp_path)["mine__adversarial__c1__1"]
    assert cell["spec_decode_acceptance_length"] == 3.0
    assert "spec_decode_per_position_acceptance_rates" not in cell
    assert "| mine | 3.00 |" in (tmp_path / "report.md").read_text()
    await engine.stop()


def test_how_long_the_sweep_takes_is_said_where_it_is_known_and_the_default_one_ends_within_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoEngines:
        """Ends the sweep when the first engine is to start."""

        def __init__(self, *_given: object) -> None: ...

        def start(self, _names: object) -> None:
            raise SystemFailedError("there is no engine here")

        def stop(self) -> None: ...

    monkeypatch.setattr(command, "Systems", NoEngines)
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path)])
    said, faults = capsys.readouterr()
    assert "--max-num-seqs" not in faults
    found = re.match(r"cells to measure: (\d+); about (\d+) minutes on two cores", said)
    assert found is not None
    assert int(found[1]) == (1 + 4 + 4 + 1) * 3 * 4 * 3
    assert int(found[2]) <= 40
    assert f"{found[1]} cells and about {5 * round(int(found[2]) / 5)} minutes" in re.sub(r"\s+", " ", PAGE)
    with pytest.raises(SystemExit):
        command.main(
            ["--out", str(tmp_path / "other"), "--model", "a/model", "--arms", "none", "--concurrency", "8,64"]
        )
    said = capsys.readouterr()
    assert "the first one gives an estimate of the duration" in said.out
    [queued, _] = said.err.splitlines()
    assert "--concurrency 64 is above --max-num-seqs 32" in queued


async def test_an_open_loop_sweep_names_its_rate(endpoint: Endpoint, tmp_path: Path) -> None:
    more = ("--repetitions", "1", "--request-rate", "50", "--goodput", "ttft:10000")
    assert await sweep(tmp_path, f"none={endpoint.url}", *more) == 0
    [cell] = cells(tmp_path).values()
    assert (cell["request_rate"], cell["max_concurrency"]) == (50.0, None)
    assert cell["request_goodput"] == pytest.approx(cell["request_throughput"])


PAGE = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "bench.md").read_text()


def test_every_setting_and_data_set_is_documented_and_no_other() -> None:
    table = PAGE.split("### Settings")[1].split("\n## ")[0]
    rows = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == set(command.SweepSettings.model_fields)
    text = " ".join(re.findall(r"^\|([^|]*)\|", PAGE.split("## Data sets")[1], re.MULTILINE))
    named = {name.partition("=")[0] for name in re.findall(r"`([a-z0-9=A-Z-]+)`", text)}
    assert named == {*DEMO, *SHIPPED, *FORMS}

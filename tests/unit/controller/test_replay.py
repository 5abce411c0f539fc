import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from controller.guard import Reason
from controller.pilot import Pilot
from controller.pools import facts_of
from controller.record import Recorded, from_line, to_line
from controller.replay import main, replay
from policy.codec import encode
from policy.types import EngineRecord, Mode, Policy, Schedule
from tests.closed_loop.plant import JSON, K_MAX, MODEL, POOL, Engine


def record(seconds: int = 12) -> tuple[list[Recorded], list[Reason]]:
    engine = Engine("one", np.random.default_rng(5))
    registered = EngineRecord("one", "http://one", MODEL, POOL, K_MAX, 3, 64, "eagle3", "0", "0", 0.0, 0.0)
    pilot, ticks, reasons = Pilot(), [], []
    schedule: Schedule | None = None
    for second in range(seconds):
        engine.run(1.0, {"json": 4}, {"json": JSON}, schedule, 1.0)
        in_force = (schedule,) if schedule else ()
        tick = Recorded(1000.0 + second, float(second), (registered,), {}, in_force, (engine.observe(float(second)),))
        ticks.append(tick)
        pilot.observe(tick.observations)
        (facts,) = facts_of(tick.engines, tick.policies, tick.schedules, Mode.ACT)
        verdict = pilot.steer(facts, tick.now)
        reasons.append(verdict.reason)
        schedule = Schedule(MODEL, POOL, second + 1, 0.0, 15.0, verdict.probe_ratio, verdict.publish)
    return ticks, reasons


def test_a_line_says_the_whole_tick() -> None:
    ticks, _ = record(3)
    for tick in ticks:
        assert from_line(to_line(tick)) == tick


def test_a_replay_decides_as_the_controller_did() -> None:
    ticks, reasons = record()
    assert Reason.GAIN in reasons
    again = [item.verdict.reason for item in replay(from_line(to_line(tick)) for tick in ticks)]
    assert again == reasons


def test_another_policy_decides_otherwise() -> None:
    ticks, _ = record()
    found = list(replay(ticks, Policy(model=MODEL, k_max=1)))
    assert all(item.k <= 1 for one in found for ranges in one.verdict.publish.values() for item in ranges)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "is not JSON"),
        ('{"model": "another"}', f"--policy: 'another' is not in the recording, which has {MODEL}"),
        ('{"model": "m", "k_min": -1}', "--policy: k_min"),
    ],
)
def test_a_policy_that_cannot_be_tried_is_refused(
    document: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "ticks.jsonl", tmp_path / "policy.json"
    file.write_text("".join(to_line(tick) + "\n" for tick in record(2)[0]))
    other.write_text(document)
    with pytest.raises(SystemExit) as stopped:
        main([str(file), "--policy", str(other)])
    assert stopped.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_replay_goes_by_the_settings_of_the_controller() -> None:
    ticks, _ = record()
    advised = [replace(tick, default_mode=Mode.ADVISE, without=("probes",)) for tick in ticks]
    found = list(replay(from_line(to_line(tick)) for tick in advised))
    assert {item.facts.policy.mode for item in found} == {Mode.ADVISE}
    assert {item.verdict.reason for item in found} & {Reason.EXPLORE} == set()


def test_the_command_reads_a_file_and_names_a_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ticks, reasons = record(6)
    file = tmp_path / "ticks.jsonl"
    file.write_text("".join(to_line(tick) + "\n" for tick in ticks))
    main([str(file)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert reasons[-1].value in lines[-1]
    other = tmp_path / "policy.json"
    for document in (b"%b", b'{"version": 3, "updated_at": 1.0, "policy": %b}'):  # as `policy get` prints it, too
        other.write_bytes(document % encode(Policy(model=MODEL, mode=Mode.OFF)))
        main([str(file), "--policy", str(other), "--json"])
        assert {json.loads(line)["reason"] for line in capsys.readouterr().out.splitlines()} == {"off"}
    file.write_text("nonsense\n")
    for arguments in ([str(file)], [str(tmp_path / "none")]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        assert str(arguments[0]) in capsys.readouterr().err

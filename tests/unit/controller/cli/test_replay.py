import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specpilot.controller.cli.replay import main, replay
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.reason import Reason
from specpilot.controller.pools import FORGET_S, pool_contexts, schedule_of
from specpilot.controller.recording.record import Recorded, from_line, to_line
from specpilot.policy.codec import encode
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Schedule
from tests.simulation.engine import K_MAX, MODEL, POOL, Engine
from tests.simulation.traffic import Source
from tests.support.loop_rig import Rig, registered


def record(seconds: int = 12) -> tuple[list[Recorded], list[Reason]]:
    engine = Engine("one", np.random.default_rng(5))
    registered = EngineRecord("one", "http://one", MODEL, POOL, K_MAX, 3, 64, "eagle3", "0", "0", 0.0, 0.0)
    law, ticks, reasons = ControlLaw(), [], []
    schedule: Schedule | None = None
    for second in range(seconds):
        engine.run(1.0, [Source("json", 4)], schedule)
        in_force = (schedule,) if schedule else ()
        tick = Recorded(1000.0 + second, float(second), (registered,), {}, in_force, (engine.observe(float(second)),))
        ticks.append(tick)
        law.observe(tick.observations)
        (context,) = pool_contexts(tick.engines, tick.policies, tick.schedules, Mode.ACT)
        result = law.decide(context, tick.now, tick.at)
        reasons.append(result.reason)
        assert result.publish is not None
        schedule = schedule_of(context, result.publish, result, second + 1, tick.at)
    return ticks, reasons


def test_a_line_says_the_whole_tick() -> None:
    ticks, _ = record(3)
    for tick in ticks:
        assert from_line(to_line(tick)) == tick


def test_a_replay_decides_as_the_controller_did() -> None:
    ticks, reasons = record()
    assert Reason.ADAPTIVE in reasons
    again = [item.result.reason for item in replay(from_line(to_line(tick)) for tick in ticks)]
    assert again == reasons


def decided_of(rig: Rig) -> list[tuple[float, str, object]]:
    return [(item.at, item.reason, item.schedule.classes if item.schedule else None) for item in rig.store.log]


def replayed_of(rig: Rig) -> list[tuple[float, str, object]]:
    lines = [to_line(tick) for tick in rig.recorded]
    return [
        (item.at, item.result.reason.value, item.result.proposed) for item in replay(from_line(line) for line in lines)
    ]


@pytest.mark.parametrize("hold", Hold)
def test_a_replay_is_frozen_when_the_controller_was(hold: Hold) -> None:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL, static_k=1), 0, 0.0)
    asyncio.run(rig.tick(20))
    rig.store.frozen[MODEL] = Freeze(MODEL, hold, 0.0, until=rig.clock.now() + 6.0)
    rig.store.put_policy(Policy(MODEL, static_k=1, k_max=2), None, 0.0)
    asyncio.run(rig.tick(20))
    assert "frozen" in {reason for _, reason, _ in decided_of(rig)}
    assert replayed_of(rig) == decided_of(rig)
    tried = list(replay(rig.recorded, Policy(MODEL, k_max=1)))
    assert Reason.FROZEN in {item.result.reason for item in tried}


def test_a_replay_holds_what_could_not_be_read_and_forgets_what_was_gone() -> None:
    rig = Rig.new()
    asyncio.run(rig.tick(10))
    rig.store.unreadable[MODEL] = InvalidDocumentError("policy", ())
    asyncio.run(rig.tick(3))
    del rig.store.unreadable[MODEL]
    engine = rig.store.records.pop("one")
    asyncio.run(rig.tick(1))
    rig.clock.at += FORGET_S + 1
    rig.fleet.ran_until = rig.clock.at  # nothing ran meanwhile
    asyncio.run(rig.tick(1))
    rig.store.heartbeat(registered(engine.engine_id, 99), 5.0)
    asyncio.run(rig.tick(10))
    assert replayed_of(rig) == decided_of(rig)


def test_another_policy_decides_otherwise() -> None:
    ticks, _ = record()
    found = list(replay(ticks, Policy(model=MODEL, k_max=1)))
    assert all(item.k <= 1 for one in found for ranges in one.result.proposed.values() for item in ranges)
    assert {one.result.guidance.classes["default"].k_max for one in found} == {1}


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
    advised = [replace(tick, default_mode=Mode.ADVISE) for tick in ticks]
    found = list(replay(from_line(to_line(tick)) for tick in advised))
    assert {item.context.policy.mode for item in found} == {Mode.ADVISE}


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


def test_a_replay_draws_the_windows_of_the_control_group_as_the_controller_did() -> None:
    rig = Rig.new()
    rig.store.put_policy(Policy(MODEL, static_k=1, control_group_ratio=0.2), 0, 0.0)
    asyncio.run(rig.tick(60))
    assert {"adaptive", "control_group"} <= {reason for _, reason, _ in decided_of(rig)}
    assert replayed_of(rig) == decided_of(rig)

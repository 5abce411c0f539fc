"""The flags of `bench control`, before it starts anything."""

import pytest

from specpilot.bench.control import command


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--by-class", "json"], "--by-class: 'json' is not a list of classes"),
        (["--by-class", "json=9"], "0 to 7, like json=7,code=0"),
        (["--by-class", "json=7,=1"], "0 to 7, like json=7,code=0"),
        (["--static", "3,9"], "--static: '3,9' is not a list of numbers, 0 to 7"),
        (["--static", "deep"], "--static: 'deep' is not a list of numbers, 0 to 7"),
    ],
)
def test_a_wrong_flag_is_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_over_as_many_plays_each_arm_has_each_engine_once_but_for_the_one_with_other_flags() -> None:
    arms = [command.FIXED, "adaptive", "with labels", "engine alone"]
    stages = {arm: f"system of {arm}" for arm in arms}
    seen: dict[str, list[str]] = {arm: [] for arm in arms}
    for _ in range(3):
        for arm, stage in stages.items():
            seen[arm].append(stage)
        assert len(set(stages.values())) == len(arms)
        stages = command.changed_round(stages)
    assert set(seen.pop("engine alone")) == {"system of engine alone"}
    assert all(len(set(found)) == 3 for found in seen.values())

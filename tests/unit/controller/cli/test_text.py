"""What the command line says of numbers that are not known, of bands and of times."""

import pytest

from specpilot.controller.cli.text import audit_line, dry_run, duration_s, forecast, note, say, unless_it_runs
from specpilot.policy.history import shown


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600)],
)
def test_a_duration_has_a_unit_or_is_seconds(given: str, seconds: float) -> None:
    assert duration_s(given) == seconds


@pytest.mark.parametrize("given", ["soon", "", "1w", "-1", "h"])
def test_what_is_no_duration_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        duration_s(given)


def test_a_value_is_json_without_what_says_nothing() -> None:
    assert [shown(value) for value in (None, "act", True, 2, 0.5)] == ["none", "act", "true", "2", "0.5"]
    assert shown([{"traffic_class": "code", "path": None}]) == '[{"traffic_class": "code"}]'


@pytest.mark.parametrize(
    ("running", "warning"),
    [
        (["demo", "big"], []),
        (["small", "big"], ["no engine of demo runs, those of big, small do: check the name"]),
        ([], ["no engine of demo runs, nor of another model"]),
    ],
)
def test_a_model_that_no_engine_serves_is_named(running: list[str], warning: list[str]) -> None:
    assert unless_it_runs("demo", [{"model": name} for name in running]) == warning


def prediction(k: float, throughput: float, itl_ms: float) -> dict[str, object]:
    return {"k": {"code": k}, "throughput": throughput, "step_s": 0.01, "itl_ms": {"code": itl_ms}}


NOTHING = {
    "pool": "h200", "engines": 20, "answers": [], "silent": {}, "in_force": None, "chosen": None, "static": None,
    "gain_ratio": None, "unknown": "",
}  # fmt: skip


def test_a_forecast_is_told_for_a_person() -> None:
    pool = NOTHING | {
        "answers": [{}] * 7, "silent": {"e3": "no answer within 1 s"}, "in_force": prediction(3, 1000.0, 12.5),
        "chosen": prediction(4.5, 1200.4, 11.25), "static": prediction(1.0, 900.0, 14.0), "gain_ratio": 0.2,
    }  # fmt: skip
    answer = {"subject": "demo", "version": 4, "changes": [["k_max", 3, None]], "forecast": [pool]}
    assert dry_run(answer) == [
        "dry run, nothing was written. It would write version 4 of demo; changes:",
        "  k_max: 3 -> none",
        "pool h200:",
        "  7 of 20 engines say:",
        "  code: mean K 3.00 -> 4.50, inter-token latency 12.50 ms -> 11.25 ms",
        "  weighted throughput: 1000 -> 1200 tokens/s and engine (+20.0%, predicted)",
        "  (K in force -> then)",
        "  static K: 900 tokens/s and engine, predicted",
        "  silent: e3: no answer within 1 s",
    ]


def test_a_goal_that_is_missed_is_said() -> None:
    pool = NOTHING | {
        "in_force": prediction(3, 1000.0, 12.5), "chosen": prediction(4.5, 1200.4, 11.25), "gain_ratio": 0.2,
        "missed_goals": {"code": {"statistic": "p95", "predicted_ms": 11.25, "limit_ms": 9.0}},
    }  # fmt: skip
    assert (
        "  code: its latency goal is missed at this load: p95 of TPOT 11.25 ms predicted, at most 9.00 ms allowed; "
        "lower the load, allow other K or raise the goal"
    ) in forecast([pool])


def test_times_are_dates() -> None:
    rows = [["until", None, 0.0], ["expires_at", 60.0, None], ["k_max", 3, 4]]
    answer = {"subject": "demo", "version": None, "changes": rows, "forecast": None}
    assert dry_run(answer)[1:] == [
        "  until: none -> 1970-01-01 00:00:00Z",
        "  expires_at: 1970-01-01 00:01:00Z -> none",
        "  k_max: 3 -> 4",
    ]
    assert audit_line(entry("", rows)).endswith(
        "[until none -> 1970-01-01 00:00:00Z; expires_at 1970-01-01 00:01:00Z -> none; k_max 3 -> 4]"
    )


def entry(text: str, changes: list[list[object]]) -> dict[str, object]:
    texts = dict.fromkeys(("who", "role", "source", "action", "subject", "result", "message", "comment"), text)
    return {**texts, "at": 0.0, "changes": changes, "changes_left_out": 0}


def test_what_is_unknown_is_said() -> None:
    assert forecast([NOTHING | {"unknown": "nothing runs"}]) == ["pool h200:", "  no prediction: nothing runs"]
    assert forecast(None) == []
    assert "no engine" in forecast([])[0]


HOSTILE = "a\n1970-01-01 00:00:00Z  done    put_policy\x1b[2K\u2028\u202eb\x7f\udc80"
ESCAPED = r"a\n1970-01-01 00:00:00Z  done    put_policy\x1b[2K\u2028\u202eb\x7f\udc80"


def test_what_anybody_sent_is_told_without_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE, "naïve 模型 “x”", audit_line(entry(HOSTILE, [[HOSTILE, HOSTILE, None]])))
    note(HOSTILE)
    told, noted = capsys.readouterr()
    assert told.startswith(f"{ESCAPED}\nnaïve 模型 “x”\n")
    assert (told.count("\n"), noted) == (3, f"{ESCAPED}\n")
    assert told.replace("\n", "").isprintable()

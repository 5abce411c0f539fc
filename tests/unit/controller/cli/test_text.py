"""What the command line says of numbers that are not known, of bands and of times."""

import pytest

from specpilot.controller.cli.text import (
    audit_line,
    dry_run,
    duration_s,
    forecast,
    k_by_class,
    moment,
    printable,
    row_name,
)
from specpilot.policy.history import shown


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1.5d", 129_600), ("soon", None), ("", None)],
)
def test_a_duration_has_a_unit_or_is_seconds(given: str, seconds: float | None) -> None:
    assert duration_s(given) == seconds


def test_a_value_is_json_without_what_says_nothing() -> None:
    assert [shown(value) for value in (None, "act", True, 2, 0.5)] == ["none", "act", "true", "2", "0.5"]
    assert shown([{"traffic_class": "code", "path": None}]) == '[{"traffic_class": "code"}]'


def test_a_time_is_in_utc() -> None:
    assert (moment(0.0), moment(None)) == ("1970-01-01 00:00:00Z", "never")


def test_a_row_of_a_band_names_class_and_band() -> None:
    assert (row_name("code"), row_name("code:7")) == ("code", "code, band 7")


def test_k_of_a_class_with_bands_is_a_range_without_the_row_that_serves_nobody() -> None:
    banded = {"default": 9, **{f"default:{band}": band for band in range(8)}}
    assert k_by_class({**banded, "code": 2}) == "code=2 default=0..7"
    assert k_by_class({"default": 3}) == "default=3"


def outlook(k: int, throughput: float | None, itl_ms: float | None) -> dict[str, object]:
    return {
        "reason": "gain",
        "meaning": "changed",
        "k": {"code:7": k},
        "throughput": throughput,
        "itl_ms": {"code:7": itl_ms},
    }


def test_a_forecast_is_told_for_a_person() -> None:
    pool = {
        "pool": "h200", "today": outlook(3, 1000.0, 12.5), "then": outlook(5, 1200.4, 11.25),
        "gain_ratio": 0.2, "unknown": "",
    }  # fmt: skip
    answer = {"subject": "demo", "version": 4, "changes": [["k_max", 3, None]], "forecast": [pool]}
    assert dry_run(answer) == (
        "dry run, nothing was written. It would write version 4 of demo; changes:\n"
        "  k_max: 3 -> none\n"
        "pool h200:\n"
        "  code, band 7: K 3 -> 5, inter-token latency 12.50 ms -> 11.25 ms\n"
        "  weighted throughput: 1000 -> 1200 tokens/s and engine (+20.0%, predicted)\n"
        "  why: gain: changed\n"
    )


def test_what_is_unknown_is_said() -> None:
    pool = {
        "pool": "p",
        "today": outlook(3, None, None),
        "then": outlook(3, None, None),
        "gain_ratio": None,
        "unknown": "idle",
    }
    told = forecast([pool])
    assert "no prediction: idle" in told
    assert "throughput: unknown -> unknown tokens/s" in told
    assert forecast(None) == ""
    assert "no engine" in forecast([])


HOSTILE = "a\n1970-01-01 00:00:00Z  done    put_policy\x1b[2K\u2028\u202eb\x7f\udc80"
ESCAPED = r"a\n1970-01-01 00:00:00Z  done    put_policy\x1b[2K\u2028\u202eb\x7f\udc80"


def test_what_anybody_sent_is_told_without_what_a_terminal_obeys() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable({HOSTILE: [HOSTILE, 1, None]}) == {ESCAPED: [ESCAPED, 1, None]}
    assert printable("naïve 模型 “x”") == "naïve 模型 “x”"
    texts = dict.fromkeys(("who", "role", "source", "action", "subject", "result", "message", "comment"), HOSTILE)
    entry = {**texts, "at": 0.0, "changes": [[HOSTILE, HOSTILE, None]], "changes_left_out": 0}
    assert audit_line(entry).isprintable()
    answer = {"subject": HOSTILE, "version": 1, "changes": [[HOSTILE, None, HOSTILE]], "forecast": None}
    assert len(dry_run(answer).splitlines()) == 2

import io
import threading

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from specpilot.gateway.telemetry.access_log import BACKLOG, AccessLog, parts_of
from specpilot.gateway.telemetry.cell import Histogram
from specpilot.gateway.telemetry.families import FAMILIES, PREFIX
from specpilot.gateway.telemetry.metrics import CELL_LIMIT, KEY_LIMIT, GatewayMetrics, buckets, exposition_of
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.latency_goal import Slo, Statistic
from tests.support.patience import PATIENCE_S
from tests.unit.gateway.telemetry.test_families import filled


def text(*workers: GatewayMetrics) -> str:
    return exposition_of(b"[%s]" % b",".join(metrics.tally() for metrics in workers)).decode()


def exposed(*workers: GatewayMetrics) -> dict[str, float]:
    families = text_string_to_metric_families(text(*workers))
    return {f"{item.name}{sorted(item.labels.items())}": item.value for family in families for item in family.samples}


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_a_histogram_counts_each_value_once_in_the_right_bucket(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    rows = dict(buckets(histogram.bounds, histogram.counts))
    for bound in (0.1, 1.0, 10.0):
        assert rows[str(bound)] == sum(value <= bound for value in values)
    assert rows["+Inf"] == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_everything_shows() -> None:
    metrics = filled()
    found, pair = exposed(metrics), "('model', 'm')"
    for name, value in {
        f"requests_total[{pair}, ('status', '200'), ('traffic_class', 'code')]": 1,
        f"output_tokens_total[{pair}, ('source', 'usage'), ('traffic_class', 'code')]": 7,
        f"output_tokens_total[{pair}, ('source', 'events'), ('traffic_class', 'code')]": 4,
        f"itl_seconds_count[{pair}, ('traffic_class', 'code')]": 5,
        "upstream_errors_total[('reason', 'connect')]": 3,
        "disconnects_total[('phase', 'wait')]": 3,
        f"policy_version[{pair}]": 4,
        "engine_ejected[('engine', 'e')]": 1,
        "snapshot_age_seconds[]": 1.5,
    }.items():
        assert found[PREFIX + name] == value
    metrics.snapshot_age_seconds = None
    assert f"{PREFIX}snapshot_age_seconds[]" not in exposed(metrics)  # unknown is not zero


def test_requests_are_counted_by_the_goals_of_their_class() -> None:
    metrics = GatewayMetrics()
    cell, slo = metrics.cell("m", "chat"), Slo(tpot_ms={Statistic.P95: 30.0}, ttft_ms={Statistic.P95: 500.0})
    for ttft_s, tpot_s in ((0.5, 0.031), (0.6, None), (0.1, 0.03)):
        cell.judge(slo, ttft_s, tpot_s)
    found = exposed(metrics, metrics)
    counts = [value for name, value in found.items() if name.startswith(f"{PREFIX}slo_requests_total")]
    assert counts == [2, 2, 4, 2]  # TPOT, then TTFT: within, beyond


def test_only_a_whole_stream_has_a_time_per_token() -> None:
    usage = Usage()
    usage.read_part(b'{"usage":{"completion_tokens":11}}')

    def tpot_s(*, is_event_stream: bool = True, error: str | None = None, events: int = 6) -> float | None:
        outcome = Outcome(
            request_id=b"r",
            method=b"POST",
            path="/",
            status=200,
            phase="done",
            received_at=0.0,
            ended_at=2.0,
            error=error,
        )
        outcome.is_event_stream, outcome.first_byte_at, outcome.events = is_event_stream, 1.0, events
        outcome.usage = usage if events == 6 else None
        return outcome.tpot_s

    assert (tpot_s(), tpot_s(events=5)) == (0.1, None)  # without usage the tokens of an event are not known
    assert (tpot_s(is_event_stream=False), tpot_s(error="stalled"), tpot_s(events=1)) == (None, None, None)


def test_every_metric_shows_its_help() -> None:
    families = text_string_to_metric_families(text(GatewayMetrics()))
    assert {family.name.removeprefix(PREFIX): family.documentation for family in families} == {
        name: family.help for name, family in FAMILIES.items()
    }


def test_the_number_of_series_is_bounded() -> None:
    metrics = GatewayMetrics()
    for at in range(CELL_LIMIT * 2):
        metrics.cell(f"m{at}", "default").count(200, 0.1)
    assert len(metrics.cells) == CELL_LIMIT + 1
    assert metrics.cells["other", "other"].requests[200] == CELL_LIMIT


class Stuck(io.BytesIO):
    """A reader that takes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def write(self, data: object) -> int:
        self.may_go_on.wait()
        return super().write(data)  # type: ignore[arg-type]


def test_keys_beyond_the_limit_count_together() -> None:
    metrics = GatewayMetrics()
    for number in range(2 * KEY_LIMIT):
        metrics.count_key(f"key-{number}", 200, None, 0)
    metrics.count_key("key-0", 429, None, 0)
    assert len(metrics.key_requests) == KEY_LIMIT + 1
    assert metrics.key_requests["other"] == {200: KEY_LIMIT}
    assert metrics.key_requests["key-0"] == {200: 1, 429: 1}


def test_what_keys_used_adds_up_over_workers_and_without_usage_events_stand_in() -> None:
    workers = [GatewayMetrics(), GatewayMetrics()]
    usage = Usage()
    usage.input_tokens, usage.output_tokens = 3, 4
    for metrics in workers:
        metrics.count_key("a", 200, usage, 99)
        metrics.count_key("a", 499, Usage(), 5)
        metrics.count_route("chat", "big", "split")
    shown = text(*workers)
    for line in (
        'key_requests_total{key_id="a",status="200"} 2.0',
        'key_requests_total{key_id="a",status="499"} 2.0',
        'key_tokens_total{direction="input",key_id="a"} 6.0',
        'key_tokens_total{direction="output",key_id="a"} 18.0',
        'model_routes_total{model="big",requested_model="chat",rule="split"} 2.0',
    ):
        assert f"specpilot_gateway_{line}\n" in shown


def test_a_slow_reader_costs_lines_not_time() -> None:
    slow = Stuck()
    log = AccessLog(slow)
    for _ in range(BACKLOG * 3):
        log.add(b'{"a":1}')
        log.flush()
    assert log.dropped > 0
    slow.may_go_on.set()
    log.close(PATIENCE_S)
    assert len(slow.getvalue().splitlines()) + log.dropped == BACKLOG * 3


def test_the_log_is_lines_of_json() -> None:
    stream = io.BytesIO()
    log = AccessLog(stream)
    log.add(b'{"a":1}')
    log.add(b'{"b":2}')
    log.close()
    assert [orjson.loads(line) for line in stream.getvalue().splitlines()] == [{"a": 1}, {"b": 2}]


def test_a_log_that_is_off_does_nothing() -> None:
    log = AccessLog(None)
    assert not log.is_on
    log.flush()
    log.close()


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), min_size=1), st.integers(1, 60))
def test_parts_are_whole_lines_within_the_limit(lines: list[bytes], limit_bytes: int) -> None:
    whole = b"\n".join(lines) + b"\n"
    parts = [*parts_of(whole, limit_bytes)]
    assert b"".join(parts) == whole
    assert all(part.endswith(b"\n") and (len(part) <= limit_bytes or part.count(b"\n") == 1) for part in parts)

from collections import defaultdict

from specpilot.policy import engine_metrics as names
from specpilot.status_line import Sample, worded


def sample(**values: float) -> Sample:
    """`DRAFTS__code__5`: the metric of this name, of a class and, where it has one, of a K."""
    found: Sample = defaultdict(float)
    for key, value in values.items():
        metric, traffic_class, k = (key + "____").split("__")[:3]
        found[getattr(names, metric), traffic_class, k] = value
    return found


def test_the_line_tells_rate_k_and_acceptance_length_of_each_busy_class() -> None:
    before = sample(DRAFTS__code__5=100, DECODE_TOKENS__code=300, DRAFTS__chat__0=7)
    now = sample(DRAFTS__code__5=200, DECODE_TOKENS__code=690, DRAFTS__chat__0=7, RUNNING_DECODES__code=4)
    line = worded(before, now, seconds=2.0)
    assert "4 running" in line
    assert "195 tok/s" in line
    assert "code K=5 AL=3.90" in line
    assert "chat" not in line


def test_where_bands_of_a_class_have_unlike_k_the_line_tells_mean_and_range() -> None:
    before = sample(DRAFTS__default__0=10, DRAFTS__default__3=10, DRAFTS__default__5=10, DECODE_TOKENS__default=30)
    now = sample(DRAFTS__default__0=10, DRAFTS__default__3=20, DRAFTS__default__5=40, DECODE_TOKENS__default=150)
    assert "default K=4.5 (3..5) AL=3.00" in worded(before, now, seconds=1.0)


def test_a_quiet_system_is_idle_and_a_restarted_engine_is_no_negative_rate() -> None:
    before = sample(DRAFTS__code__5=100, DECODE_TOKENS__code=300)
    line = worded(before, sample(DRAFTS__code__5=10), seconds=1.0)
    assert "0 tok/s" in line
    assert line.endswith("idle")


def test_refused_and_failed_requests_are_told_and_who_left_is_none() -> None:
    requests = "specpilot_gateway_requests_total"
    before = {(requests, "default", "200"): 5.0, (requests, "default", "401"): 2.0}
    quiet = before | {(requests, "default", "200"): 9.0, (requests, "chat", "499"): 1.0}
    assert "  2.5 req/s    0 running" in worded(before, quiet, seconds=2.0)
    refused = quiet | {(requests, "default", "401"): 6.0, (requests, "chat", "502"): 1.0}
    assert "  5.0 req/s (2.5 failed)" in worded(before, refused, seconds=2.0)

from collections import defaultdict

from policy import engine_metrics as names
from specpilot.status_line import Sample, worded


def sample(**values: float) -> Sample:
    found: Sample = defaultdict(float)
    for key, value in values.items():
        metric, _, traffic_class = key.partition("__")
        found[getattr(names, metric), traffic_class] = value
    return found


def test_the_line_tells_rate_k_and_acceptance_length_of_each_busy_class() -> None:
    before = sample(DRAFTS__code=100, DECODE_TOKENS__code=300, ACTIVE_K__code=5, ACTIVE_K__chat=0)
    now = sample(DRAFTS__code=200, DECODE_TOKENS__code=690, ACTIVE_K__code=5, ACTIVE_K__chat=0, RUNNING_DECODES__code=4)
    line = worded(before, now, seconds=2.0)
    assert "4 running" in line
    assert "195 tok/s" in line
    assert "code K=5 AL=3.90" in line
    assert "chat" not in line


def test_a_quiet_system_is_idle_and_a_restarted_engine_is_no_negative_rate() -> None:
    line = worded(sample(DRAFTS__code=100, DECODE_TOKENS__code=300), sample(ACTIVE_K__code=5), seconds=1.0)
    assert "0 tok/s" in line
    assert line.endswith("idle")

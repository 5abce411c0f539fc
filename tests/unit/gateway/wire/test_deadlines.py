import pytest

from specpilot.gateway.wire.deadlines import Bounds, Overdue, overdue

BOUNDS = Bounds(
    max_body_bytes=1,
    max_bodies_bytes=1,
    connect_timeout_s=1,
    first_byte_timeout_s=20,
    stream_first_byte_timeout_s=15,
    stream_content_timeout_s=40,
    idle_timeout_s=5,
    total_timeout_s=100,
    request_timeout_s=10,
    body_timeout_s=100,
    max_connections=1,
    keep_alive_s=1,
    queue_timeout_s=3,
)


@pytest.mark.parametrize(
    ("phase", "last_at", "received_at", "sent_at", "name"),
    [
        ("request", 991, 991, 0, None),
        ("request", 989, 989, 0, "request"),
        ("queue", 0, 998, 0, None),
        ("queue", 0, 996, 0, "queue"),
        ("connect", 0, 950, 0, None),
        ("connect", 0, 899, 0, "total"),
        ("wait", 0, 970, 981, None),
        ("wait", 0, 970, 979, "first_byte"),
        ("wait", 999, 899, 999, "total"),
        ("response", 996, 950, 0, None),
        ("response", 994, 950, 0, "idle"),
        ("response", 999, 899, 999, "total"),
    ],
)
def test_each_phase_has_its_time_outs(
    phase: str, last_at: float, received_at: float, sent_at: float, name: str | None
) -> None:
    found = overdue(BOUNDS, phase, 1000, last_at=last_at, received_at=received_at, sent_at=sent_at, is_stream=False)
    assert (found.name if found else None) == name


def test_a_time_out_names_its_setting() -> None:
    assert str(Overdue("first_byte", 20)) == "the first byte time-out of 20 s is over (--first-byte-timeout-s)"


def test_a_stream_has_a_bound_of_its_own_on_its_first_byte() -> None:
    times = {"last_at": 984.0, "received_at": 984.0, "sent_at": 984.0}
    assert overdue(BOUNDS, "wait", 1000, **times, is_stream=False) is None
    assert overdue(BOUNDS, "wait", 1000, **times, is_stream=True) == Overdue("stream_first_byte", 15)
    assert overdue(BOUNDS, "wait", 998, **times, is_stream=True) is None


def test_any_byte_ends_a_streams_silence_and_its_first_content_has_a_bound_beside() -> None:
    times = {"received_at": 950.0, "is_stream": True}
    assert overdue(BOUNDS, "wait", 1000, last_at=990, sent_at=961, **times) is None
    assert overdue(BOUNDS, "wait", 1000, last_at=984, sent_at=961, **times) == Overdue("stream_first_byte", 15)
    assert overdue(BOUNDS, "wait", 1000, last_at=999, sent_at=959, **times) == Overdue("stream_content", 40)

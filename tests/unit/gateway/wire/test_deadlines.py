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
    ("phase", "is_stream", "last_at", "received_at", "sent_at", "name"),
    [
        ("request", False, 991, 991, 0, None),
        ("request", False, 989, 989, 0, "request"),
        ("request", False, 999, 899, 0, "body"),
        ("queue", False, 0, 998, 0, None),
        ("queue", False, 0, 996, 0, "queue"),
        ("connect", False, 0, 950, 0, None),
        ("connect", False, 0, 899, 0, "total"),
        ("wait", False, 0, 970, 981, None),
        ("wait", False, 0, 970, 979, "first_byte"),
        ("wait", False, 999, 899, 999, "total"),
        ("wait", True, 986, 986, 986, None),
        ("wait", True, 984, 984, 984, "stream_first_byte"),
        ("wait", True, 990, 950, 961, None),  # any byte ends a silence
        ("wait", True, 984, 950, 961, "stream_first_byte"),
        ("wait", True, 999, 950, 959, "stream_content"),
        ("response", False, 996, 950, 0, None),
        ("response", False, 994, 950, 0, "idle"),
        ("response", False, 999, 899, 999, "total"),
    ],
)
def test_each_phase_has_its_time_outs(
    phase: str, is_stream: bool, last_at: float, received_at: float, sent_at: float, name: str | None
) -> None:
    found = overdue(BOUNDS, phase, 1000, last_at=last_at, received_at=received_at, sent_at=sent_at, is_stream=is_stream)
    assert found == (None if name is None else Overdue(name, getattr(BOUNDS, f"{name}_timeout_s")))


def test_a_time_out_names_its_setting() -> None:
    assert str(Overdue("first_byte", 20)) == "the first byte time-out of 20 s is over (--first-byte-timeout-s)"

"""Whose fault a row of failures is."""

import pytest

from specpilot.gateway.routing.outlier_detection import FAILURES_ALLOWED, SOURCES_MAX, OutlierDetection, Source

A1, A2, B1 = ("a", 1), ("a", 2), ("b", 1)


@pytest.mark.parametrize(
    ("sources", "is_ejected", "is_suspect"),
    [
        ([A1] * FAILURES_ALLOWED, False, False),
        ([A1] * 50, False, False),
        ([A1, A2] * FAILURES_ALLOWED, False, True),
        ([A1, B1] * FAILURES_ALLOWED, True, False),
        ([A1] * (FAILURES_ALLOWED - 1) + [B1], True, False),
        ([A1] * (FAILURES_ALLOWED - 1) + [None], True, False),
        ([None] * FAILURES_ALLOWED, True, False),
        ([A1, B1, None, A2][: FAILURES_ALLOWED - 1], False, False),
    ],
)
def test_failures_eject_where_they_may_be_the_engines(
    sources: list[Source | None], is_ejected: bool, is_suspect: bool
) -> None:
    subject = OutlierDetection()
    said = [subject.fail(1.0, is_connect=False, source=source) for source in sources]
    assert (any(said), subject.is_ejected, subject.is_suspect) == (is_ejected, is_ejected, is_suspect)


def test_a_good_answer_ends_a_row_and_a_suspicion() -> None:
    subject = OutlierDetection()
    for at in range(FAILURES_ALLOWED):
        subject.fail(1.0, is_connect=False, source=("a", at))
    assert subject.is_suspect
    subject.begin_answer(2.0)
    assert (subject.is_suspect, subject.failures, subject._sources) == (False, 0, set())


@pytest.mark.parametrize("is_healthy", [True, False])
def test_a_probe_settles_a_suspicion(is_healthy: bool) -> None:
    subject = OutlierDetection()
    for at in range(3 * SOURCES_MAX):
        subject.fail(1.0, is_connect=False, source=("a", at))
    assert len(subject._sources) == SOURCES_MAX
    subject.settle(2.0, is_healthy=is_healthy)
    assert (subject.is_ejected, subject.is_suspect, subject.failures) == (not is_healthy, False, 0)


@pytest.mark.parametrize(("sources", "is_ejected"), [([A1], False), ([A1, A2], True), ([A1, B1], True), ([None], True)])
def test_answers_that_fail_eject_by_several_clients_or_bodies(sources: list[Source | None], is_ejected: bool) -> None:
    subject = OutlierDetection()
    for at in range(2 * FAILURES_ALLOWED):
        subject.fail_stream(1.0, sources[at % len(sources)])
    assert subject.is_ejected == is_ejected
    subject.complete_stream()
    assert (subject.stream_failures, subject._stream_sources) == (0, set())

"""Calibration with a server that fails; the measurement itself is an end-to-end test."""

import http.server
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent import calibration
from specpilot.engine_adapter.agent.calibration import Calibration
from specpilot.engine_adapter.evidence.meter import Cohort, Draft, Evidence, Meter, Outcome, StepShape
from specpilot.engine_adapter.evidence.request_acceptance import Kind, Starts
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan.speculation_control import Source, SpeculationControl


@contextmanager
def serving(
    health: int = 200,
    completions: int = 200,
    on_call: Callable[[int], object] = lambda _: None,
    on_headers: Callable[[Any], object] = lambda _: None,
) -> Iterator[str]:
    """An engine's HTTP face that answers with these statuses.

    `on_headers` gets those of a call, then `on_call` the number of its prompts.
    """

    class Face(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(health)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            on_headers(self.headers)
            on_call(len(body["prompt"]))
            self._answer(completions)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Face)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def scheduler() -> Any:
    config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 1000, max_model_len=2048))
    return SimpleNamespace(
        control=SpeculationControl("m", "p", 7, 3, 4),
        law=EngineLaw(7, 3, 4),
        meter=Meter(),
        steps=SimpleNamespace(starts=Starts()),
        vllm_config=config,
        notes=[],
        has_unfinished_requests=lambda: False,
    )


def test_an_engine_that_cannot_be_measured_keeps_its_static_k_and_logs_the_reason(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibration, "START_S", 0.2)
    with serving(503) as url, caplog.at_level(logging.WARNING, logger="vllm.specpilot"):
        Calibration(scheduler, url, 5.0).run(threading.Event())
    assert "its /health does not answer 200" in caplog.text
    assert scheduler.control.table(0.0).source is Source.FIXED


@pytest.mark.parametrize("url", ["http://no-such-engine.invalid:8000", "https://127.0.0.1:{port}"])
def test_a_fault_that_waiting_cannot_repair_does_not_delay_the_engine(
    url: str, scheduler: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibration, "START_S", 3600.0)
    with serving() as plain, caplog.at_level(logging.WARNING, logger="vllm.specpilot"):
        Calibration(scheduler, url.format(port=plain.rsplit(":")[-1]), 5.0).run(threading.Event())
    assert "cannot be reached from within the engine" in caplog.text


def test_a_refusal_is_logged_at_once(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calibration, "ANSWER_S", 3600.0)
    with serving(200, 401) as url, caplog.at_level(logging.WARNING, logger="vllm.specpilot"):
        Calibration(scheduler, url, 3600.0).run(threading.Event())
    assert "its /v1/completions answered 401" in caplog.text
    assert scheduler.control.table(0.0).source is Source.FIXED


@pytest.mark.parametrize("k_max", [1, 2, 3, 7])
def test_a_mix_of_k_is_measured_whatever_the_largest_is(k_max: int) -> None:
    """Else nothing tells the price of a step in which some requests draft and others do not."""
    *same, mixed = calibration.settings(8, k_max)
    assert [first == others for first, others in same] == [True] * len(same)
    assert 0 <= mixed[1] < mixed[0] == k_max
    assert all(first == others for first, others in calibration.settings(1, k_max))


def test_requests_that_end_early_are_sent_anew_and_steps_of_few_do_not_count(
    scheduler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a small `max_model_len`: each call is answered after three steps, most of them of one request."""
    calls: list[int] = []

    def short(count: int) -> None:
        calls.append(count)
        for running in (count, 1, 1):
            scheduler.meter.commit(StepShape(running, running, 0), 0.001, 10, Outcome())

    scheduler.control = SpeculationControl("m", "p", 7, 3, 8)
    with serving(on_call=short) as url, caplog.at_level(logging.INFO, logger="vllm.specpilot"):
        Calibration(scheduler, url, 600.0).run(threading.Event())
    assert "with up to 8 requests running" in caplog.text
    assert scheduler.notes == []
    of_8 = [count for count in calls if count == 4]  # each call has half of the requests
    assert len(of_8) >= 4 * calibration.STEPS


@pytest.mark.parametrize(("requests", "notes"), [(4, 1), (16, 0)])
def test_slow_steps_of_a_few_requests_are_reported_with_what_helps(
    requests: int, notes: int, scheduler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(prompts: int) -> None:
        count = 2 * prompts
        seconds = 0.4 if count >= requests else 0.02
        for _ in range(calibration.STEPS):
            scheduler.meter.commit(StepShape(count, count, 0), seconds, 10, Outcome())

    scheduler.control = SpeculationControl("m", "p", 7, 3, requests)
    with serving(on_call=slow) as url, caplog.at_level(logging.WARNING, logger="vllm.specpilot"):
        Calibration(scheduler, url, 600.0).run(threading.Event())
    assert len(scheduler.notes) == notes
    for note in scheduler.notes:
        assert f"400 ms with {requests} running" in note
        assert "--dtype" in note
        assert note in caplog.text


def test_one_that_is_switched_off_asks_nothing(scheduler: Any) -> None:
    Calibration(scheduler, "http://127.0.0.1:1", 0.0).run(threading.Event())
    assert scheduler.control.calibrating is None


def test_of_what_is_counted_meanwhile_the_law_learns_the_steps_and_nothing_is_left(scheduler: Any) -> None:
    """The drafts of random tokens are no evidence about traffic: neither the law nor the controller learns them."""
    over, seen = threading.Event(), set()

    def run_steps() -> None:
        while not over.is_set():
            table = scheduler.control.table(0.0)
            seen.add((table.source, table.k("default"), table.k(calibration.CLASS)))
            outcome = Outcome([Draft("default", 0, 2, 0)], {Cohort("default", 0): 1}, tokens={Cohort("default", 0): 1})
            scheduler.meter.commit(StepShape(3, 3, 0), 0.001, 10, outcome)
            scheduler.steps.starts.note(Kind("default", 0, is_structured=False), 0, 1)
            over.wait(0.001)

    def runs_on() -> bool:
        """The last request ends when the calibration waits for it at K = 0."""
        table = scheduler.control.table(0.0)
        if table.k("default") == table.k(calibration.CLASS) == 0:
            over.set()
            runner.join()
        return False

    scheduler.has_unfinished_requests = runs_on
    runner = threading.Thread(target=run_steps)
    with serving() as url:
        runner.start()
        Calibration(scheduler, url, 600.0).run(threading.Event())
    assert {item[1:] for item in seen if item[0] is Source.CALIBRATING} >= {(0, 0), (7, 7), (2, 2), (7, 1)}
    assert scheduler.law.cost.steps >= 11 * calibration.STEPS
    assert scheduler.law.decode_s == 0
    scheduler.law.refresh()
    assert scheduler.law.prices is not None
    assert scheduler.law.estimates is None, "no traffic was seen"
    assert (scheduler.meter.take_evidence(), scheduler.meter.take_steps()) == (Evidence(), [])
    assert scheduler.steps.starts.known() == Starts().known()


def test_what_still_runs_when_it_gives_up_is_waited_for_at_k_0(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The random requests end when their connection is closed, and that takes a moment."""
    monkeypatch.setattr(calibration, "ANSWER_S", 0.3)
    asked: list[tuple[Source, int]] = []

    def runs_on() -> bool:
        table = scheduler.control.table(0.0)
        asked.append((table.source, table.k("default")))
        return len(asked) < 5

    scheduler.has_unfinished_requests = runs_on
    with serving(200, 401) as url:
        Calibration(scheduler, url, 5.0).run(threading.Event())
    assert asked == [(Source.CALIBRATING, 0)] * 5
    assert scheduler.control.table(0.0).source is Source.FIXED


def test_the_table_of_a_setting() -> None:
    table = calibration.calibrating(7, 1)
    assert [table.k(name) for name in ("default", "code", "calibration")] == [7, 7, 1]
    assert table.probe_ratio == 0


@pytest.mark.parametrize("rank", [None, 0, 3])
def test_a_data_parallel_rank_sends_its_requests_to_itself(rank: int | None, scheduler: Any) -> None:
    stated: list[str | None] = []

    def run(count: int) -> None:
        for _ in range(calibration.STEPS):
            scheduler.meter.commit(StepShape(count, count, 0), 0.001, 10, Outcome())

    scheduler.control = SpeculationControl("m", "p", 7, 3, 1)
    with serving(on_call=run, on_headers=lambda headers: stated.append(headers[calibration.RANK_HEADER])) as url:
        Calibration(scheduler, url, 600.0, rank).run(threading.Event())
    assert set(stated) == {None if rank is None else str(rank)}

"""The page that an engine core writes: whole, whatever its threads and its disk do."""

import logging
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specpilot.engine_adapter.agent import export
from specpilot.engine_adapter.agent.export import FOLDER, MetricsExporter, State
from specpilot.engine_adapter.evidence.meter import Evidence, StepKind, StepSums
from specpilot.engine_adapter.plan.latencies import Latency
from specpilot.policy import engine_metrics as names
from specpilot.policy.latency_goal import Slo, Statistic


@pytest.fixture
def exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MetricsExporter:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return MetricsExporter("m")


def page(folder: Path) -> str:
    (found,) = folder.glob(f"*{export.ENDING}")
    return found.read_text()


def state(running: dict[str, float], age_s: float = 0.5) -> State:
    return {names.RUNNING_DECODES: running, names.SCHEDULE_VERSION: 1, names.SCHEDULE_AGE_SECONDS: age_s}


def classes_of(text: str, metric: str) -> dict[str, float]:
    return {
        sample.labels[names.LABEL_CLASS]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric
    }


def test_a_class_that_is_gone_has_no_gauge(exporter: MetricsExporter, tmp_path: Path) -> None:
    exporter.show(state({"chat": 3, "old": 1}))
    exporter.write()
    assert classes_of(page(tmp_path), names.RUNNING_DECODES) == {"chat": 3.0, "old": 1.0}
    exporter.show(state({"chat": 0}))
    exporter.write()
    assert classes_of(page(tmp_path), names.RUNNING_DECODES) == {"chat": 0.0}


def test_what_an_slo_and_the_time_of_decoding_say_is_shown_only_where_there_is_any(exporter: MetricsExporter) -> None:
    for decode_s, breaks_slo, seconds, breaks in (
        (None, None, [], []), (1.5, True, ["1.5"], ["1.0"]), (4.0, False, ["4.0"], ["0.0"]), (4.0, None, ["4.0"], []),
    ):  # fmt: skip
        exporter.show({names.DECODE_SECONDS: decode_s, names.STATIC_BREAKS_SLO: breaks_slo})
        for name, expected in ((names.DECODE_SECONDS, seconds), (names.STATIC_BREAKS_SLO, breaks)):
            lines = [line for line in exporter.text().splitlines() if line.startswith(name)]
            assert [line.split()[-1] for line in lines] == expected


def test_steps_are_shown_by_kind_and_add_up(exporter: MetricsExporter) -> None:
    for evidence in (
        {StepKind.DECODE: StepSums(3, 0.5, 24), StepKind.CATCH_UP: StepSums(1, 0.25, 8)},
        {StepKind.DECODE: StepSums(1, 0.25, 6), StepKind.PREFILL: StepSums(2, 4.0, 5)},
    ):
        exporter.add(Evidence(steps=defaultdict(StepSums, evidence)))
    found = {
        (sample.name, sample.labels[names.LABEL_KIND]): sample.value
        for family in text_string_to_metric_families(exporter.text())
        for sample in family.samples
    }
    assert found == {
        (names.STEPS, "decode"): 4, (names.STEP_SECONDS, "decode"): 0.75, (names.STEP_DECODES, "decode"): 30,
        (names.STEPS, "catch_up"): 1, (names.STEP_SECONDS, "catch_up"): 0.25, (names.STEP_DECODES, "catch_up"): 8,
        (names.STEPS, "prefill"): 2, (names.STEP_SECONDS, "prefill"): 4.0, (names.STEP_DECODES, "prefill"): 5,
    }  # fmt: skip


def test_an_idle_engines_page_is_written_now_and_then(exporter: MetricsExporter, tmp_path: Path) -> None:
    def age(value: float) -> str:
        exporter.show(state({"chat": 0}, value))
        exporter.write()
        return page(tmp_path)

    first = age(1.0)
    ages = [age(2.0 + at) for at in range(200)]
    assert 2 <= len(set(ages)) < 50  # of 200 exports
    assert ages[0] == first
    exporter.add(Evidence(tokens={("chat", 7): 5}))  # type: ignore[arg-type]
    assert names.DECODE_TOKENS in age(99.0)


def test_a_full_disk_is_logged_once_and_the_page_is_written_when_there_is_room(
    exporter: MetricsExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    logging.getLogger("vllm.specpilot").propagate = True
    exporter.show(state({"chat": 3}))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        for _ in range(3):
            exporter.write()
    assert [record.message for record in caplog.records] == [
        "SpecPilot: /metrics lacks the evidence until an export succeeds: [Errno 28] No space left on device"
    ]
    exporter.write()
    assert classes_of(page(tmp_path), names.RUNNING_DECODES) == {"chat": 3.0}


def test_a_page_is_removed_for_good_and_the_last_one_takes_the_folder_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    exporter, other = MetricsExporter("m"), folder / f"7{export.ENDING}"
    exporter.write()
    other.write_text("")
    exporter.remove()
    exporter.write()
    assert [*folder.iterdir()] == [other]
    other.unlink()
    again = MetricsExporter("m")
    again.write()
    again.remove()
    assert not folder.exists()


def test_threads_may_add_and_write_at_once(exporter: MetricsExporter, tmp_path: Path) -> None:
    """The calibration's thread ends while the exporter's begins."""
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for at in range(200):
                exporter.add(Evidence(tokens={(f"{name}{at}", 7): 5}))  # type: ignore[arg-type]
                exporter.write()
        except BaseException as error:  # noqa: BLE001 - checked below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(classes_of(page(tmp_path), names.DECODE_TOKENS)) == 400


def test_requests_are_counted_by_the_goals_of_their_class(exporter: MetricsExporter) -> None:
    slo = Slo(tpot_ms={Statistic.P95: 30.0})
    tpot = [Latency("chat", "tpot", seconds) for seconds in (0.01, 0.03, 0.031)]
    others = [Latency("chat", "ttft", 0.2), Latency("code", "tpot", 0.04), Latency("unknown", "tpot", 9.0)]
    exporter.add_latencies([*tpot, *others], {"default": None, "chat": slo, "code": None})
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exporter.text())
        for sample in family.samples
    }
    requests = {key[1:]: value for key, value in found.items() if key[0] == names.SLO_REQUESTS}
    assert requests == {("m", "0", "chat", "tpot", "within"): 2.0, ("m", "0", "chat", "tpot", "beyond"): 1.0}
    assert found[names.SLO_SECONDS, "m", "0", "chat", "tpot"] == pytest.approx(0.071)
    assert found[f"{names.TPOT_SECONDS}_count", "m", "0", "chat"] == 3.0
    assert found[f"{names.TPOT_SECONDS}_sum", "m", "0", "default"] == 9.0
    assert found[f"{names.TTFT_SECONDS}_count", "m", "0", "chat"] == 1.0
    buckets = [value for key, value in found.items() if key[:4] == (f"{names.TPOT_SECONDS}_bucket", "m", "0", "chat")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-1]) == (0.0, 3.0)


def test_without_requests_and_goals_the_page_has_no_word_of_them(exporter: MetricsExporter) -> None:
    exporter.add_latencies([], {"default": None})
    exporter.show({names.DECODE_SECONDS: 1.0, names.SLO_PREDICTED_SECONDS: {}, names.RUNNING_LIMIT: None})
    assert "\n" + names.RUNNING_LIMIT not in exporter.text()
    exporter.show({names.RUNNING_LIMIT: 5})
    assert f'{names.RUNNING_LIMIT}{{model_name="m",engine="0"}} 5' in exporter.text()
    assert "slo" not in exporter.text()
    assert "tpot" not in exporter.text()

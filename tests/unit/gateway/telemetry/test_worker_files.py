"""Workers that publish, end and begin while others read: no counter goes backwards, none counts twice."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specpilot.gateway.telemetry.merge import COUNTERS, SUMS
from specpilot.gateway.telemetry.worker_files import Ledger, publish, read_total


def tally(count: int) -> dict[str, Any]:
    return {COUNTERS: {"requests": count}, SUMS: {"in_flight": 1}}


def test_counters_stay_and_gauges_go(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open(1)
    ledger.open(2)
    publish(tmp_path, 1, tally(5))
    publish(tmp_path, 2, tally(7))
    assert read_total(tmp_path) == {COUNTERS: {"requests": 12}, SUMS: {"in_flight": 2}}
    ledger.close(1)
    assert read_total(tmp_path) == {COUNTERS: {"requests": 12}, SUMS: {"in_flight": 1}}
    ledger.open(3)
    ledger.close(3)  # it never published
    ledger.close(2)
    assert read_total(tmp_path) == {COUNTERS: {"requests": 12}}
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"]


def test_a_gateway_without_a_count_has_none(tmp_path: Path) -> None:
    Ledger(tmp_path)
    assert read_total(tmp_path) == {}


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ledger"):
        read_total(tmp_path)


def test_no_counter_goes_backwards_while_workers_come_and_go(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(read_total(tmp_path).get(COUNTERS, {}).get("requests", 0))

    reader = threading.Thread(target=read)
    reader.start()
    for worker in range(1, 60):
        ledger.open(worker)
        for count in range(1, 6):
            publish(tmp_path, worker, tally(count))
        if worker > 2:
            ledger.close(worker - 2)
        reads = len(seen)
        while worker % 5 == 0 and len(seen) == reads and reader.is_alive():
            time.sleep(0.001)  # a busy machine may give the reader no turn
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 5
    assert read_total(tmp_path)[COUNTERS]["requests"] == 59 * 5

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from specpilot.bench.gateway.canned_engine import EVENTS
from specpilot.bench.gateway.figures import JSON, PACED, SCENARIOS, Sample, figures, markdown, summary
from specpilot.bench.report.process_tree import cpu_s_of, descriptors_of, memory_by_name, memory_of, tree
from tests.support.patience import PATIENCE_S
from tests.support.stack import free_port, until

OURS = ("specpilot", "specpilot, 2 workers", "specpilot, not compiled")
NAMES = ("direct", "uvloop + httptools", *OURS, "first peer", "second peer")


def sample(cpu_s: float, latency: float, requests: int = 100, memory: int = 0) -> Sample:
    return Sample(2.0, cpu_s, memory, 0, [latency] * requests, [0.02 + latency] * requests)


def samples() -> dict[tuple[str, str], list[Sample]]:
    of = {"uvloop + httptools": (0.008, 0.001)}
    of |= {"specpilot, 2 workers": (0.012, 0.0015), "specpilot, not compiled": (0.02, 0.004)}
    of |= {"direct": (0.5, 0.001), "specpilot": (0.01, 0.002), "first peer": (0.1, 0.004), "second peer": (0.04, 0.003)}
    return {
        (scenario.name, name): [sample(*of[name], memory=scenario.connections * 20_000)] * 3
        for scenario in SCENARIOS.values()
        for name in NAMES
    }


def test_figures_are_per_request_or_event_and_added_to_the_direct_way() -> None:
    found = figures(samples(), JSON, "specpilot")
    assert found["cpu_us"] == pytest.approx(100)
    assert found["per_s"] == 50
    assert found["ttft_p99"] == pytest.approx(1.0)
    assert found["kb"] == pytest.approx(20)
    assert figures(samples(), PACED, "specpilot")["cpu_us"] == pytest.approx(100 / EVENTS)


def test_the_summary_compares_with_the_best_peer() -> None:
    found = summary(samples(), [*SCENARIOS.values()], NAMES)
    assert found["json_cpu_vs_best_peer"] == 0.25
    assert found["sse_cpu_vs_best_peer"] == 0.25
    assert found["json_stack_floor_vs_best_peer"] == found["sse_stack_floor_vs_best_peer"] == 0.2
    assert found["added_itl_ms_p99"] == 1.0
    assert found["kb_per_stream"] == 20.0
    assert found["json_cpu_vs_not_compiled"] == 0.5
    assert found["peers"] == ["first peer", "second peer"]


def test_without_a_peer_there_is_none_to_compare_with() -> None:
    found = summary(samples(), [*SCENARIOS.values()], ("direct", "uvloop + httptools", *OURS))
    assert found["peers"] == []
    assert [name for name in found if name.endswith("best_peer")] == []
    assert found["json_cpu_vs_not_compiled"] == 0.5


def test_the_report_has_every_scenario_and_target() -> None:
    text = markdown(samples(), [*SCENARIOS.values()], NAMES)
    assert all(scenario.name in text for scenario in SCENARIOS.values())
    assert text.count("| specpilot |") == len(SCENARIOS)


def test_where_only_some_are_played_the_report_has_these() -> None:
    played = [SCENARIOS["json-1m"]]
    assert markdown(samples(), played, NAMES).count("| specpilot |") == 1
    assert summary(samples(), played, NAMES) == {"peers": ["first peer", "second peer"]}


def test_cpu_and_memory_are_those_of_the_whole_tree() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: cpu_s_of(process.pid) > 0.3)
        assert len(tree(process.pid)) == 2
        assert cpu_s_of(process.pid) > 0.3
        assert memory_of(process.pid) > 5_000_000
        assert all(size > 5_000_000 for size in memory_by_name(process.pid).values())
    finally:
        for child in reversed(tree(process.pid)):
            os.kill(child, 9)
        process.wait()


def test_the_floor_passes_bytes_both_ways() -> None:
    ports = free_port(), free_port()
    origin = subprocess.Popen([sys.executable, "-m", "specpilot.bench.gateway.canned_engine", str(ports[0])])
    relay = subprocess.Popen(
        [sys.executable, "-m", "specpilot.bench.gateway.uvloop_relay", str(ports[1]), str(ports[0])]
    )
    try:
        for port in ports:
            until(partial(listens, port))
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[1]}") as client:
            answers = [_answer(client, words) for words in ("json", "burst", "json")]
    finally:
        for process in (origin, relay):
            process.kill()
            process.wait()
    assert answers[0] == answers[2]
    assert json.loads(answers[0])["object"] == "chat.completion"
    assert answers[1].count("data: ") == EVENTS + 1


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answer(client: httpx.Client, words: str) -> str:
    body = {"messages": [{"role": "user", "content": f"{words} x"}]}
    return client.post("/v1/chat/completions", json=body, timeout=PATIENCE_S).text


def test_open_files_are_counted() -> None:
    before = descriptors_of(os.getpid())
    with Path(os.devnull).open(), Path(os.devnull).open():
        assert descriptors_of(os.getpid()) == before + 2
    assert descriptors_of(os.getpid()) == before

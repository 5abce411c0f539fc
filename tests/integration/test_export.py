"""`specpilot export` against a real controller: what it prints, and what it refuses."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import free_port, wait_for

TOKEN = "let me in"


@pytest.fixture(scope="module")
def admin_url() -> Iterator[str]:
    redis, port = RedisServer(), free_port()
    store = RedisStore(redis.url, PATIENCE_S)
    rows = {"default": (KRange(1, 8, 3),), "code": (KRange(1, 4, 7), KRange(5, 8, 1)), "chat": (KRange(1, 8, 0),)}
    lease = store.acquire_lease("test", 60.0)  # so the controller below leads nothing and the schedules stay
    assert lease is not None
    for pool in ("a", "b"):
        store.publish_schedule(Schedule("m", pool, 1, time.time(), 60.0, 0.0, rows), lease)
    evidence = {"classes": {"code": {"share": 0.75}, "chat": {"share": 0.25}}}
    decision = Decision(time.time(), "m", "a", Mode.ACT, "adaptive", True, 1, None, None, evidence)
    store.append_decision(decision, is_lasting=True)
    command = [sys.executable, "-m", "specpilot.controller", "--port", str(port), "--redis-url", redis.url]
    controller = subprocess.Popen([*command, "--admin-token", TOKEN, "--log-level", "error"])
    wait_for(f"http://127.0.0.1:{port}/health", controller)
    yield f"http://127.0.0.1:{port}"
    controller.kill()
    controller.wait()
    redis.close()


def export(admin_url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specpilot.cli", "export", "--admin-url", admin_url, "--token", TOKEN]
    return subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_the_table_is_the_mean_by_traffic_and_says_so(admin_url: str) -> None:
    done = export(admin_url, "--model", "m", "--pool", "a", "--format", "vllm", "--drafter", "eagle3")
    assert done.returncode == 0, done.stderr
    table = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 8, 1]]}
    assert json.loads(done.stdout) == table
    assert "chat 25%, code 75%" in done.stderr
    done = export(admin_url, "--model", "m", "--pool", "b", "--format", "sglang", "--drafter", "eagle")
    assert json.loads(done.stdout) == {"candidate_steps": [3], "1": {"candidate_steps": [3]}}
    assert "the row 'default' alone" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "m", "--format", "vllm", "--drafter", "eagle"), "--pool: m has a, b; name one"),
        (("--model", "x", "--format", "vllm", "--drafter", "eagle"), "--model: there is no schedule for x"),
        (("--model", "m", "--format", "vllm", "--drafter", "p-eagle"), "the engine dies"),
    ],
)
def test_what_cannot_be_exported_is_one_line(admin_url: str, flags: tuple[str, ...], said: str) -> None:
    done = export(admin_url, *flags)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1

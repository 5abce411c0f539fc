"""`specpilot export` against a real controller: what it prints, and what it refuses."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from specpilot.policy.questions import ALL_CLASSES, Answer
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import KRange
from specpilot.policy.store import Store
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import free_port, wait_for

TOKEN = "let me in"


@pytest.fixture(scope="module")
def admin_url() -> Iterator[str]:
    redis, port = RedisServer(), free_port()
    store, is_over = Store(redis.url, PATIENCE_S), threading.Event()
    rows = {"a": (KRange(1, 4, 5), KRange(5, 8, 1)), "b": (KRange(1, 8, 3),), "zero": (KRange(1, 8, 0),)}
    for pool in (*rows, "silent"):
        url = f"http://127.0.0.1:1/{pool}"
        record = EngineRecord(pool, url, "m", pool, 7, 7, 8, "eagle3", "0.32.0", "0.1.0", 1.0, time.time())
        store.heartbeat(record, 600.0)

    def answer() -> None:
        while not is_over.wait(0.02):
            for pool, row in rows.items():
                for question in store.questions("m", pool):
                    store.put_answer(Answer(question.question_id, pool, k_by_load={ALL_CLASSES: row}))

    engines = threading.Thread(target=answer)
    engines.start()
    command = [sys.executable, "-m", "specpilot.controller", "--port", str(port), "--redis-url", redis.url]
    controller = subprocess.Popen([*command, "--admin-token", TOKEN, "--log-level", "error"])
    wait_for(f"http://127.0.0.1:{port}/health", controller)
    yield f"http://127.0.0.1:{port}"
    controller.kill()
    controller.wait()
    is_over.set()
    engines.join(PATIENCE_S)
    redis.close()


def export(admin_url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specpilot.cli", "export", "--admin-url", admin_url, "--token", TOKEN]
    return subprocess.run([*command, *flags], capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_the_table_is_what_the_engines_say(admin_url: str) -> None:
    done = export(admin_url, "--model", "m", "--pool", "a", "--format", "vllm", "--drafter", "eagle3")
    assert done.returncode == 0, done.stderr
    table = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 8, 1]]}
    assert json.loads(done.stdout) == table
    assert "what 1 of 1 engines would choose for their present traffic" in done.stderr
    done = export(admin_url, "--model", "m", "--pool", "b", "--format", "sglang", "--drafter", "eagle")
    assert json.loads(done.stdout) == {"candidate_steps": [3], "1": {"candidate_steps": [3]}}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "m", "--format", "vllm", "--drafter", "eagle"), "--pool: name one of: a, b, silent, zero"),
        (("--model", "x", "--format", "vllm", "--drafter", "eagle"), "no engine of such a model and pool runs"),
        (
            ("--model", "m", "--pool", "silent", "--format", "vllm", "--drafter", "eagle"),
            "no engine answers; silent: no answer within 1 s",
        ),
        (("--model", "m", "--pool", "zero", "--format", "vllm", "--drafter", "eagle"), "K = 0 at every load"),
        (("--model", "m", "--format", "vllm", "--drafter", "p-eagle"), "the engine dies"),
    ],
)
def test_what_cannot_be_exported_is_one_line(admin_url: str, flags: tuple[str, ...], said: str) -> None:
    done = export(admin_url, *flags)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1

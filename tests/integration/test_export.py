"""`specpilot export` against a real controller: what it prints, and what it refuses."""

import json
import threading
import time
from collections.abc import Iterator

import pytest

from specpilot.policy.questions import ALL_CLASSES, Answer
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import KRange
from specpilot.policy.store import Store
from tests.support.controller_program import Controller
from tests.support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def steering(controller: Controller) -> Iterator[Controller]:
    """A controller of four pools with an engine each, of which one never answers."""
    store, is_over = Store(controller.redis.url, PATIENCE_S), threading.Event()
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
    yield controller
    is_over.set()
    engines.join(PATIENCE_S)
    store.close()


def test_the_table_is_what_the_engines_say(steering: Controller) -> None:
    done = steering.command("export", "--model", "m", "--pool", "a", "--format", "vllm", "--drafter", "eagle3")
    assert done.returncode == 0, done.stderr
    table = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 8, 1]]}
    assert json.loads(done.stdout) == table
    assert "what 1 of 1 engines would choose for their present traffic" in done.stderr
    done = steering.command("export", "--model", "m", "--pool", "b", "--format", "sglang", "--drafter", "eagle")
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
def test_what_cannot_be_exported_is_one_line(steering: Controller, flags: tuple[str, ...], said: str) -> None:
    done = steering.command("export", *flags)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1

"""One machine for good: `specpilot up --sagemaker` on real vLLM, asked as an endpoint asks, each part killed once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.stack import DEMO_MODEL, counters, free_port, until

pytestmark = [pytest.mark.e2e, pytest.mark.extended("unattended"), pytest.mark.timeout(600)]
READY_S = 180.0
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "X-Amzn-SageMaker-Custom-Attributes": "trace=1",
    "X-Traffic-Class": "code",
}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Write a function that adds."}], "max_tokens": 8}


@dataclass
class Container:
    process: subprocess.Popen[bytes]
    port: int
    engine: str
    log: Path
    state: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def said(self, text: str) -> bool:
        return any(line["part"] == "specpilot" and text in line["message"] for line in self.lines())

    def invoke(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """What the platform makes of boto3's `invoke_endpoint(ContentType=..., Accept=..., Body=...)`."""
        url = f"http://127.0.0.1:{self.port}/invocations"
        try:
            with urlopen(Request(url, json.dumps(body).encode(), HEADERS), timeout=60) as reply:
                return reply.status, reply.read()
        except HTTPError as error:
            return error.code, error.read()
        except (URLError, OSError):
            return 0, b""

    def engine_counts_by_header(self) -> bool:
        """Whether the engine, asked as by a gateway that is not ours, counts drafts of the header's class.

        It does from the first schedule on that names the class.
        """
        asked = Request(f"{self.engine}/v1/chat/completions", json.dumps(CHAT).encode(), HEADERS)
        with urlopen(asked, timeout=60) as reply:
            assert reply.status == 200
        return counters(self.engine, "specpilot_engine_drafts_total", "traffic_class").get(("code",), 0) > 0

    def pings(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def pid_of(self, words: str) -> int:
        """The part whose command line holds `words`: a child of the supervisor."""
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if words in Path(f"/proc/{child}/cmdline").read_bytes().decode().replace("\0", " "):
                return int(child)
        raise AssertionError(f"no part has {words!r}")


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    model = tmp_path / "model"
    model.mkdir()
    for path in (DEMO_MODEL / "target").iterdir():
        (model / path.name).symlink_to(path)
    (model / "drafter").symlink_to(DEMO_MODEL / "peagle")
    port, admin, engine = free_port(), free_port(), free_port()
    policy = {"model": "demo", "mode": "act", "classes": {"code": {}}}
    environment = {
        **os.environ,
        "SM_VLLM_MODEL": str(model),
        "SM_VLLM_SERVED_MODEL_NAME": "demo",
        "SM_VLLM_MAX_NUM_SEQS": "8",
        "SM_VLLM_SEED": "1",
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SPECPILOT_UP_POLICY": json.dumps(policy),
        "SPECPILOT_UP_ADMIN_PORT": str(admin),
        "SPECPILOT_UP_ENGINE_PORT": str(engine),
        "SPECPILOT_UP_STATE_DIR": str(tmp_path / "state"),
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specpilot.cli", "up", "--sagemaker"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    running = Container(process, port, f"http://127.0.0.1:{engine}", log, tmp_path / "state")
    yield running
    if process.poll() is None:
        process.terminate()
        process.wait(60)


def test_an_endpoints_container_serves_and_outlives_the_death_of_each_part(container: Container) -> None:
    until(lambda: container.process.poll() is not None or container.pings(), READY_S)
    assert container.process.poll() is None, container.log.read_text()[-3000:]
    until(container.engine_counts_by_header)
    status, body = container.invoke(CHAT)  # the port opened when the model was ready
    assert status == 200, body
    assert json.loads(body)["usage"]["completion_tokens"] == 8
    status, body = container.invoke({**CHAT, "stream": True})
    assert status == 200
    assert body.rstrip().endswith(b"data: [DONE]")
    status, _ = container.invoke({"model": "demo", "prompt": "def add(", "max_tokens": 4})
    assert status == 200
    with urlopen(f"http://127.0.0.1:{container.port}/metrics", timeout=5) as reply:  # for the agent on the machine
        assert b'traffic_class="code"' in reply.read()

    parts = {"redis-server": "redis", "specpilot.cli controller": "controller"}
    for words, name in parts.items():
        os.kill(container.pid_of(words), signal.SIGKILL)
        assert container.invoke(CHAT)[0] == 200  # requests need neither
        until(lambda name=name: container.said(f"{name} died with status -9"))  # type: ignore[misc]
        until(lambda words=words: bool(container.pid_of(words)) if _runs(container, words) else False)  # type: ignore[misc]
        assert container.invoke(CHAT)[0] == 200
    for words in ("specpilot.cli gateway", "--served-model-name"):
        os.kill(container.pid_of(words), signal.SIGKILL)
        until(lambda: not container.pings())  # the platform sees that nothing is served
        until(lambda: container.invoke(CHAT)[0] == 200, READY_S, every=1.0)
        assert container.pings()

    container.process.terminate()
    assert container.process.wait(2 * PATIENCE_S) == 0
    lines = container.lines()
    assert {"specpilot", "redis", "engine-0", "controller", "gateway"} <= {line["part"] for line in lines}
    assert any(line["part"] == "gateway" and line.get("status") == 200 for line in lines)
    assert list((container.state / "logs").iterdir()) == []


def _runs(container: Container, words: str) -> bool:
    try:
        return bool(container.pid_of(words))
    except AssertionError:
        return False

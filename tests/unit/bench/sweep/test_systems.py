"""Which processes a sweep starts, and that it ends them."""

import json
import os
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from specpilot.bench.sweep import systems
from specpilot.bench.sweep.systems import Engines, SystemFailedError, Systems, command_of
from specpilot.ports import check_port


def engines(folder: Path, port: int = 8600) -> Engines:
    heads = {"p-eagle": "/heads/parallel", "eagle3": "/heads/sequential"}
    return Engines("/models/target", heads, 7, 16, "--dtype float32", folder, port)


def test_no_speculation_is_vllm_as_it_is_and_the_others_carry_the_adapter(tmp_path: Path) -> None:
    commands = {
        name: command_of(engines(tmp_path), name, 8600, has_gpu=True)
        for name in ("none", "eagle3", "p-eagle", "adaptive")
    }
    assert "vllm.entrypoints.openai.api_server" in commands["none"]
    assert "--speculative-config" not in commands["none"]
    parallel, sequential = (
        json.loads(commands[name][commands[name].index("--speculative-config") + 1]) for name in ("p-eagle", "eagle3")
    )
    assert parallel == sequential | {"model": "/heads/parallel", "parallel_drafting": True}
    assert sequential["num_speculative_tokens"] == 7
    assert commands["adaptive"][4] == "up"
    for name in ("eagle3", "p-eagle"):  # else K would be the calibration's while the first cells are measured
        assert commands[name][commands[name].index("--calibrate-s") + 1] == "0"
    for command in commands.values():
        assert "--dtype" in " ".join(command)
        assert "--no-enable-prefix-caching" in " ".join(command)
        assert "--enforce-eager" not in command
    assert "--enforce-eager" in command_of(engines(tmp_path), "none", 8600, has_gpu=False)


def is_listening(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Instead of engines, small servers that are well; the one of `p-eagle` ends at once."""
    (tmp_path / "health").write_text("well")

    def command(_engines: Engines, name: str, port: int, *, has_gpu: bool) -> list[str]:
        if name == "p-eagle":
            return [sys.executable, "-c", "raise SystemExit('out of memory')"]
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]

    monkeypatch.setattr(systems, "command_of", command)
    below_ephemeral = range(20_000 + os.getpid() % 5_000, 32_000)  # where nobody else's next socket comes to lie
    port = next(port for port in below_ephemeral if not any(check_port("127.0.0.1", port + i) for i in (0, 3, 6)))
    return engines(tmp_path, port)


def test_engines_run_together_and_all_end(servers: Engines) -> None:
    running = Systems(servers, {"mine": "http://127.0.0.1:1"})
    running.start(["none", "eagle3", "mine"])
    ports = [servers.port, servers.port + systems.PORTS]
    assert all(is_listening(port) for port in ports)
    assert running.use("none").process is not None
    assert running.use("mine").process is None
    running.stop()
    assert not any(is_listening(port) for port in ports)


def test_one_at_a_time_the_one_before_makes_room(servers: Engines) -> None:
    running = Systems(servers, {}, one_at_a_time=True)
    running.use("none")
    running.use("eagle3")
    assert not is_listening(servers.port)
    assert is_listening(servers.port + systems.PORTS)
    running.stop()


def test_an_engine_that_ends_at_its_start_is_named_with_its_log(servers: Engines) -> None:
    running = Systems(servers, {})
    with pytest.raises(SystemFailedError, match="engine of 'p-eagle' did not start") as caught:
        running.start(["p-eagle"])
    running.stop()
    log = Path(str(caught.value).rsplit(" ", maxsplit=1)[-1])
    assert "out of memory" in log.read_text()


def test_a_port_that_is_taken_is_named_before_anything_is_loaded(servers: Engines) -> None:
    running = Systems(servers, {})
    with closing(socket.socket()) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the test before may linger
        taken.bind(("127.0.0.1", servers.port))
        taken.listen()
        with pytest.raises(SystemFailedError, match=rf"'none' did not start: 127.0.0.1:{servers.port} cannot be used"):
            running.start(["none"])
    assert not (servers.folder / "logs").exists()


def test_engines_that_are_started_have_no_control_token_whatever_the_operators_own_have() -> None:
    for has_gpu in (True, False):
        assert systems.environment(has_gpu=has_gpu, is_local=True)["SPECPILOT_ENGINE_CONTROL_TOKEN"] == ""

"""What `specpilot up` makes of its flags, up to the processes it would start."""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specpilot import gpus, up, up_parts, up_settings
from specpilot.controller.settings import ControllerSettings
from specpilot.demo_model import DEMO_TARGET
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.model_policy import Policy
from specpilot.policy.settings import ProgramSettings, load
from specpilot.ports import check_port
from specpilot.supervisor import Part
from specpilot.up_parts import engine_notes
from specpilot.up_settings import UpSettings, check, check_ports, read
from tests.support.patience import PATIENCE_S
from tests.support.refusals import refusal
from tests.support.stack import free_port


def settings_of(*flags: str) -> UpSettings:
    return load(UpSettings, up.PROGRAM, flags)


def read_by(part: Part, kind: type[ProgramSettings], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings that a part reads from its arguments and its environment."""
    for name, value in part.environment.items():
        monkeypatch.setenv(name, value)
    words = list(part.command)
    return load(kind, part.name, words[words.index(part.name) + 1 :])


@pytest.mark.parametrize(("flags", "workers"), [((), 1), (("--workers", "3"), 3)])
def test_workers_reach_the_gateway(flags: tuple[str, ...], workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, gateway = up_parts.servers(settings_of(*flags), "unix:///x")
    settings = read_by(gateway, GatewaySettings, monkeypatch)
    assert settings.workers == workers
    assert settings.redis_url == "unix:///x"


def test_no_secret_is_in_an_argument_and_every_part_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can read the arguments of its processes."""
    url = "redis://:pass-word@10.0.0.9:6379/0"
    settings = settings_of("--admin-token", "to-ken")
    servers, engines = up_parts.servers(settings, url), up_parts.engines(settings, url)
    for part in [*servers, *engines]:
        assert not any("pass-word" in word or "to-ken" in word for word in part.command)
        assert part.environment["REDIS_URL"] == url
    for variable in ("SPECPILOT_CONTROLLER_REDIS_URL", "SPECPILOT_ENGINE_REDIS_URL"):
        monkeypatch.setenv(variable, "redis://another")  # an operator's own, which the part would read first
    for part, kind in zip(servers, (ControllerSettings, GatewaySettings), strict=True):
        found = read_by(part, kind, monkeypatch)
        assert found.redis_url == url
        assert found.admin_token is not None
        assert found.admin_token.get_secret_value() == "to-ken"
    for name, value in engines[0].environment.items():
        monkeypatch.setenv(name, value)
    assert AdapterSettings().redis_url == url


@pytest.mark.parametrize(
    ("devices", "engines", "shares"),
    [
        ([], 2, [[], []]),
        (["0", "1"], 2, [["0"], ["1"]]),
        (["4", "5", "6", "7"], 2, [["4", "5"], ["6", "7"]]),
        (["0", "1", "2"], 2, [["0"], ["1"]]),
        (["0"], 3, [["0"], ["0"], ["0"]]),
        (["GPU-a", "GPU-b"], 3, [["GPU-a"], ["GPU-b"], ["GPU-a"]]),
    ],
)
def test_each_engine_has_its_share_of_the_gpus(devices: list[str], engines: int, shares: list[list[str]]) -> None:
    assert [gpus.share(devices, engines, index) for index in range(engines)] == shares


def test_two_engines_do_not_meet_on_the_first_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(gpus.VISIBLE, raising=False)

    def given(*flags: str) -> list[str | None]:
        return [part.environment.get(gpus.VISIBLE) for part in up_parts.engines(settings_of(*flags), "unix:///x")]

    assert given("--engines", "2") == ["0", "1"]
    assert given() == [None]
    monkeypatch.setenv(gpus.VISIBLE, "3,5,6,7")
    assert given("--engines", "2") == ["3,5", "6,7"]


def test_sigterm_ends_a_start_that_waits_for_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(up, "check", lambda _: None)
    monkeypatch.setattr(up, "check_ports", lambda _: None)
    monkeypatch.setattr(up, "_write_policy", lambda settings, *_: Policy(settings.served_model_name))
    loading = [sys.executable, "-c", "import time; time.sleep(600)"]

    def is_ready() -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    monkeypatch.setattr(up, "engines", lambda *_: [Part("engine-0", loading, is_ready)])
    monkeypatch.setattr(up, "servers", lambda *_: [])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        up.main(["--redis-url", "redis://r", "--state-dir", str(tmp_path)])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("cores", "gpus", "arguments", "servers"),
    [
        (16, 1, (), 13),
        (16, 4, ("--engines", "4"), 4),
        (16, 8, ("--engines", "2"), 4),  # tensor parallel
        (16, 8, ("--engines", "8"), 1),
        (16, 8, ("--engines", "8", "--workers", "4"), 4),
        (4, 1, (), 1),
        (2, 1, (), 1),
        (1, 1, (), 1),
    ],
)
def test_with_gpus_the_other_programs_have_the_cores_that_engines_do_not_need(
    monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int, arguments: tuple[str, ...], servers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(up_parts.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    found = up_parts.servers(settings_of(*arguments), "redis://x")
    assert [part.cores for part in found] == [frozenset(range(cores - servers, cores))] * len(found)


@pytest.mark.parametrize(
    ("cores", "workers", "engines", "servers"),
    [
        ({0}, 1, [0], [0]),
        ({0}, 4, [0], [0]),
        ({0, 1}, 1, [0], [1]),
        ({0, 1}, 4, [0], [1]),
        ({2, 3, 5, 7}, 1, [2, 3, 5], [7]),
        ({2, 3, 5, 7}, 2, [2, 3], [5, 7]),
    ],
)
def test_each_gateway_worker_has_a_core_that_is_no_engines(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int, engines: list[int], servers: list[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert up_parts._cores(settings_of("--workers", str(workers))) == (engines, servers)


@pytest.mark.parametrize("flags", [("--workers", "0"), ("--workers", "two"), ("--state-dir", "/dev/null/x")])
def test_a_flag_that_cannot_work_is_one_line_that_names_it(flags: tuple[str, str], tmp_path: Path) -> None:
    ports = [f"--{name}={free_port()}" for name in ("port", "admin-port", "engine-port")]
    command = [sys.executable, "-P", "-m", "specpilot.cli", "up", *ports, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert f"{flags[0]}:" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--policy", "/nowhere.json"), "cannot read /nowhere.json"),
        (("--policy", "{"), "--policy:"),
        (("--policy", '{"model": "demo", "mode": "fast"}'), "mode"),
        (("--policy", '{"model": "other"}'), "--served-model-name is 'demo'"),
        (("--model", str(DEMO_TARGET.parent / "eagle3")), "--drafter: missing"),
    ],
)
def test_a_policy_or_model_that_does_not_fit_is_refused(
    flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, check, settings_of(*flags))


@pytest.mark.parametrize(
    ("flags", "model", "drafter", "k_max"),
    [
        ((), "target", "peagle", 7),
        (("--drafter", "p-eagle"), "target", "peagle", 7),
        (("--drafter", "eagle3", "--k-max", "5"), "target", "eagle3", 5),
        (("--drafter", "dflash"), "target", "dflash", 7),
        (("--drafter", "mtp"), "mtp", "mtp", 3),
        (("--drafter", "mtp", "--k-max", "1"), "mtp", "mtp", 1),
    ],
)
def test_the_demo_models_heads_are_chosen_by_name(flags: tuple[str, ...], model: str, drafter: str, k_max: int) -> None:
    found = read(flags)
    check(found)
    assert (Path(found.model).name, Path(found.drafter).name, found.k_max) == (model, drafter, k_max)
    [engine] = up_parts.engines(found, "unix:///x")
    at = list(engine.command).index("--drafter")
    assert engine.command[at + 1 : at + 4] == [found.drafter, "--k-max", str(k_max)]


def test_an_endpoints_head_lies_beside_its_model_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drafter").mkdir()
    for name in [name for name in os.environ if name.startswith(("SM_", "SAGEMAKER_", "SPECPILOT_UP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SM_VLLM_MODEL", str(tmp_path))
    monkeypatch.setattr(os, "environ", dict(os.environ))  # the endpoint's settings are added to it
    assert read(("--sagemaker",)).drafter == str(tmp_path / "drafter")
    assert read(("--sagemaker", "--drafter", "org/head")).drafter == "org/head"


def test_a_models_own_mtp_head_needs_no_name_of_a_demo_head(capsys: pytest.CaptureFixture[str]) -> None:
    found = read(("--model", "org/model", "--drafter", "mtp"))
    check(found)
    assert found.model == "org/model"
    other = read(("--model", "org/model", "--drafter", "eagle3"))
    assert "the demo's fits no other" in refusal(capsys, check, other)


@pytest.mark.parametrize(
    ("flags", "first", "second"),
    [
        (("--port", "8082", "--controllers", "2"), "--admin-port", "--port"),
        (("--port", "8090", "--admin-port", "8090"), "--admin-port", "--port"),
        (("--engine-port", "8079", "--engines", "2"), "--engine-port", "--port"),
        (("--engine-port", "8082", "--controllers", "2"), "--engine-port", "--admin-port"),
        (("--engine-port", "65535", "--engines", "2"), "--engine-port", "65536"),
    ],
)
def test_a_port_that_two_parts_would_take_is_refused_with_their_flags(
    flags: tuple[str, ...], first: str, second: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_settings, "check_port", lambda *_: None)
    said = refusal(capsys, check_ports, settings_of(*flags))
    assert said.startswith(f"specpilot up: {first}: ")
    assert second in said
    assert "choose" in said


def test_a_host_that_no_resolver_accepts_is_named() -> None:
    assert "no..name:8080 cannot be used" in str(check_port("no..name", 8080))


def test_two_of_one_state_dir_would_write_one_file_and_the_second_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(up_settings, "check_port", lambda *_: "is taken by the first")
    claim = up._claim(tmp_path)
    assert "--state-dir: another specpilot up runs" in refusal(capsys, up.main, ["--state-dir", str(tmp_path)])
    assert not (tmp_path / "redis").exists()
    os.close(claim)
    os.close(up._claim(tmp_path))


@pytest.mark.parametrize("ranks", [False, True])
def test_what_the_engines_note_at_their_start_is_shown(ranks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, Any]] = [{"notes": ["the number format is float32"]}, {"notes": ["steps are slow"]}]
    state = {"ranks": states} if ranks else {"notes": [*states[0]["notes"], *states[1]["notes"]]}

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == "Bearer t0p" and self.path == "/speculation"
            body = json.dumps(state if is_known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", "t0p")
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = read(["--engine-port", str(server.server_port), "--engines", "2"])  # the second does not answer
        notes = engine_notes(settings)
        server.shutdown()
    assert notes == ["engine-0: the number format is float32", "engine-0: steps are slow"]


def test_an_endpoints_variables_are_settings_and_the_operators_own_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.update(
        {
            "SM_VLLM_MODEL": str(DEMO_TARGET),
            "SM_VLLM_MAX_MODEL_LEN": "512",
            "SAGEMAKER_BIND_TO_PORT": "9001",
            "SAGEMAKER_SAFE_PORT_RANGE": "9010-9020",
            "SPECPILOT_UP_CONTROLLERS": "2",
            "SPECPILOT_UP_SERVED_MODEL_NAME": "mine",
            "SM_VLLM_SERVED_MODEL_NAME": "theirs",
        }
    )
    found = read(["--sagemaker", "--engine-args", "--seed 1"])
    assert (found.unattended, found.host, found.port, found.public_paths) == (
        True,
        "0.0.0.0",
        9001,
        "/ping,/invocations",
    )
    assert (found.admin_port, found.engine_port) == (9010, 9012)
    assert (found.model, found.served_model_name) == (str(DEMO_TARGET), "mine")
    assert found.engine_args == "--max-model-len 512 --seed 1"
    *controllers, gateway = up_parts.servers(found, "unix:///x")
    assert read_by(gateway, GatewaySettings, monkeypatch).public_paths == ("/ping", "/invocations")
    for part in [*up_parts.engines(found, "unix:///x"), *controllers]:
        assert "0.0.0.0" not in part.command

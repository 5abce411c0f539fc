"""The command and environment with which `specpilot engine` becomes vLLM, and what it ends with before that."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specpilot.engine_adapter import __main__ as command
from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.__main__ import main
from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import versions
from tests.support.refusals import refusal
from tests.support.stack import DEMO_MODEL, free_port

PREFIX = "SPECPILOT_ENGINE_"
TARGET, P_EAGLE, EAGLE_3 = (str(DEMO_MODEL / name) for name in ("target", "peagle", "eagle3"))
SPECULATORS = {
    "speculators_model_type": "peagle",
    "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}]},
}


class _BecameVllmError(Exception):
    """What `exec` would have started."""


def become(path: str, words: list[str], environment: Mapping[str, str]) -> None:
    raise _BecameVllmError(words, environment)


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting, no vLLM, and a folder of metrics whose name no test in another process has; heads are beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "execve", become)
    for name in os.environ:
        if name.startswith("SPECPILOT_") or name in ("REDIS_URL", versions.RUNNER):
            monkeypatch.delenv(name)
    for name, text in (("head", json.dumps(SPECULATORS)), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    monkeypatch.chdir(tmp_path)


def started(monkeypatch: pytest.MonkeyPatch, *flags: str, **environment: str) -> tuple[list[str], AdapterSettings]:
    """vLLM's command, and the settings that the adapter finds in vLLM's processes."""

    monkeypatch.setattr(command, "_check_port", lambda host, port: None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(_BecameVllmError) as became:
        main(["--model", "some/model", "--port", "1", "--no-async-scheduling", "--any-vllm", *flags])
    words, found = became.value.args
    for name, value in found.items():
        if name.startswith("SPECPILOT_") or name in ("REDIS_URL", "VLLM_PLUGINS"):
            monkeypatch.setenv(name, value)
    return words, AdapterSettings()


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str, **environment: str) -> AdapterSettings:
    return started(monkeypatch, *flags, **environment)[1]


NO_ADDRESSES = (
    "gpu-1:8000",
    "ftp://gpu-1:8000",
    "http://:8000",
    "http://gpu-1:80000",
    "http://gpu-1:0",
    "http://gpu-1:port",
    "http://[fd00::1:8000",
    "http://fd00::1:8000",
    "http://gpu 1:8000",
    "http://gpu-1..lan:8000",
    "http://gpu-1:8000?a=b",
)
NO_ADDRESS = PREFIX + "URL: is no engine's address; write http://HOST:PORT"
NO_LIST = "GRAPH_K: {!r} is no list of K; write whole numbers from 0 on, by commas: 1,3"


def speculating(method: str, *flags: str, **fields: Any) -> tuple[str, ...]:
    return ("--speculative-config", json.dumps({"method": method, "model": "a/b", **fields}), *flags)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (("--model", ""), {}, "--model: is missing"),
        (("--model", "./nowhere"), {}, "--model: no model in ./nowhere"),
        *(((), {"URL": url}, NO_ADDRESS) for url in NO_ADDRESSES),
        *((("--advertise-url", url), {"URL": "http://gpu-1:8000"}, NO_ADDRESS) for url in NO_ADDRESSES),
        ((), {"REDIS_ULR": "1"}, "REDIS_ULR: there is no such setting; did you mean SPECPILOT_ENGINE_REDIS_URL?"),
        *(
            ((), {name: "1"}, f"{name}: there is no such setting; remove it, or take one that the documentation lists")
            for name in ("K_MAX", "DRAFT_WIDTH")
        ),
        ((), {"ANY_VLLM": "perhaps"}, "ANY_VLLM: "),
        (("--static-k", "-1"), {}, "--static-k: "),
        (("--static-k", "some"), {}, "--static-k: "),
        (("--least-k", "65"), {}, "--least-k: "),
        *(
            ((f"--graph-k={value}",), {}, NO_LIST.format(value).replace("GRAPH_K", "--graph-k"))
            for value in ("many", "1,", "-1")
        ),
        *(((), {"GRAPH_K": value}, NO_LIST.format(value)) for value in ("many", "1,", "-1")),
        (("--max-nun-seqs", "8"), {}, "--max-nun-seqs: there is no such flag; did you mean --max-num-seqs?"),
        (("--least-l", "3"), {}, "--least-l: there is no such flag; did you mean --least-k?"),
        (
            ("--control-token", "a", "secret"),
            {},
            "a word belongs to no flag; quote a value that holds white space, name the model with --model",
        ),
        (("--redis-url", "rediss:/r"), {}, "--redis-url: it is none of redis://"),
        (("--redis-url", "http://user:secret@r"), {}, "--redis-url: 'http://' is none of redis://"),
        (
            ("--redis-url", "redis://a,b"),
            {},
            "--redis-url: it names several hosts; write redis+sentinel:// or redis+cluster://",
        ),
        (("--redis-url", "redis+sentinel://a"), {}, "--redis-url: it names no service"),
        (("--speculative-config", "{"), {}, "--speculative-config: not JSON"),
        (("--speculative-config", "3"), {}, "--speculative-config: must be a JSON object"),
        (
            speculating("eagle3", num_speculative_tokens="seven"),
            {},
            "--speculative-config: num_speculative_tokens: is seven; it must be a whole number",
        ),
        (speculating("suffix"), {}, "not method 'suffix'"),
        *(
            (speculating(method), {versions.RUNNER: "0"}, "set VLLM_USE_V2_MODEL_RUNNER=1")
            for method in ("dspark", "ngram")
        ),
        (speculating("ngram"), {versions.RUNNER: "yes"}, "it must be 0 or 1"),
        (speculating("mtp", "--pipeline-parallel", "2"), {}, "pipeline parallelism"),
        (speculating("mtp", "-dcp=2"), {}, "context parallelism"),
        (speculating("mtp", "--data_parallel_size", "2", "-dpl", "1"), {}, "ranks on other machines"),
        (speculating("mtp", "--pipeline-parallel-size", "x"), {}, "pipeline-parallel-size: is x"),
        (speculating("mtp", "--static-k", "3", num_speculative_tokens=1), {}, "--static-k names K = 3 and K_max is 1"),
        (("--drafter", "mtp", "--k-max", "0"), {}, "--k-max: is 0; it must be at least 1"),
        (("--drafter", EAGLE_3, "--k-max", "0"), {}, "--k-max: is 0; it must be at least 1"),
        (("--drafter", "broken"), {}, "config.json cannot be read"),
        (("--drafter", "./nowhere"), {}, "--drafter: no model in ./nowhere"),
        (("--preset", "gpt-oss-20b"), {}, "--preset: there is no preset 'gpt-oss-20b'; did you mean gpt-oss-20b"),
        (("--preset", "gemma-4-31b-p-eagle", "--k-max", "5"), {}, "name one with --drafter"),
    ],
)
def test_what_cannot_start_ends_in_one_line_before_vllm_loads(
    flags: tuple[str, ...],
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name if name == versions.RUNNER else PREFIX + name, value)
    [line] = refusal(capsys, main, ["--model", "some/model", *flags]).splitlines()
    assert line.startswith("specpilot engine: ")
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize(("any_vllm", "words"), [("", "no engine of it was tested"), ("1", "--model: no model in")])
def test_the_environment_accepts_an_untested_vllm_as_the_flag_does(
    any_vllm: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "ACCEPTED", ("0.1",))
    monkeypatch.setenv("SPECPILOT_ENGINE_ANY_VLLM", any_vllm)
    assert words in refusal(capsys, main, ["--model", "./nowhere"])


EAGLE3_OF_3 = {"method": "eagle3", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), None),
        (("--drafter", P_EAGLE, "--k-max", "3"), EAGLE3_OF_3 | {"model": P_EAGLE, "parallel_drafting": True}),
        (("--drafter", EAGLE_3, "--k-max", "3"), EAGLE3_OF_3 | {"model": EAGLE_3}),
        (
            ("--drafter", "head"),
            {"method": "eagle3", "model": "head", "num_speculative_tokens": 5, "parallel_drafting": True},
        ),
        (("--drafter", "mtp"), {"method": "mtp", "num_speculative_tokens": 3}),
        (("--drafter", "mtp", "--k-max", "1"), {"method": "mtp", "num_speculative_tokens": 1}),
        *(
            (speculating(method), {"method": method, "model": "a/b"})
            for method in ("mimo_mtp", "deepseek_mtp", "dspark", "ngram", "draft_model")
        ),
        (
            ("--preset", "gpt-oss-20b-p-eagle", "--model", TARGET, "--drafter", P_EAGLE),
            {"method": "eagle3", "model": P_EAGLE, "num_speculative_tokens": 7, "parallel_drafting": True},
        ),
        (
            ("--preset", "gpt-oss-20b-p-eagle", "--model", TARGET, *speculating("eagle3", model=EAGLE_3)),
            {"method": "eagle3", "model": EAGLE_3},
        ),
    ],
)
def test_a_drafter_is_written_as_vllms_json(
    flags: tuple[str, ...], expected: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "vllm_version", lambda: "0.32.0")
    monkeypatch.setattr(versions, "is_for_cpus", lambda: False)
    words, _ = started(monkeypatch, *flags)
    at = words.index("--speculative-config") + 1 if "--speculative-config" in words else None
    assert (json.loads(words[at]) if at is not None else None) == expected
    assert words[words.index("--model") + 1] == (TARGET if TARGET in flags else "some/model")
    sizes = ["--max-cudagraph-capture-size", "4096"] if "--preset" in flags else []
    assert words[words.index("--no-async-scheduling") + 1 :] == sizes


@pytest.mark.parametrize(("version", "is_for_cpus"), [("0.31.0", False), ("0.32.0", True)])
def test_before_vllm_0_32_and_on_cpus_the_runner_is_v1(
    version: str, is_for_cpus: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "vllm_version", lambda: version)
    monkeypatch.setattr(versions, "is_for_cpus", lambda: is_for_cpus)
    said = refusal(capsys, main, ["--model", "some/model", "--any-vllm", *speculating("ngram")])
    assert "set VLLM_USE_V2_MODEL_RUNNER=1" in said


ENVIRONMENT = {"SPECPILOT_ENGINE_URL": "http://gpu-1:8000", "SPECPILOT_ENGINE_POOL": "h200", "REDIS_URL": "redis://x"}
FLAGS = ("--advertise-url", "http://gpu-2:8000", "--pool", "h100", "--redis-url", "redis://two")


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (
            (),
            {**ENVIRONMENT, "SPECPILOT_ENGINE_REDIS_URL": "redis://one"},
            {"url": "http://gpu-1:8000", "pool": "h200", "redis_url": "redis://one"},
        ),
        (FLAGS, ENVIRONMENT, {"url": "http://gpu-2:8000", "pool": "h100", "redis_url": "redis://two"}),
        (
            ("--host", "0.0.0.0"),
            {"REDIS_URL": "redis://x"},
            {"url": "http://127.0.0.1:1", "pool": "default", "redis_url": "redis://x"},
        ),
        (("--host", "fd00::1"), {}, {"url": "http://[fd00::1]:1"}),
        (("--host", "::"), {}, {"url": "http://127.0.0.1:1"}),
        (("--graph-k", "3"), {}, {"graph_k": (3,)}),
        (("--graph-k", ""), {}, {"graph_k": None}),
        ((), {"SPECPILOT_ENGINE_GRAPH_K": "1, 3"}, {"graph_k": (1, 3)}),
        (("--static_k", "0", "--engine-id", "e1"), {}, {"static_k": 0, "id": "e1", "any_vllm": True}),
        (("--max-num-seq", "8", "--a-plugins-own", "8"), {}, {"trust_this_machine": False}),  # cut short, as in vLLM
        (("--max-nun-seqs", "8", "--trust-this-machine"), {}, {"trust_this_machine": True}),  # which another may have
        (("--probe-ratio", "0.1"), {"SPECPILOT_ENGINE_BACKLOG_MIB": "6"}, {"probe_ratio": 0.1, "backlog_mib": 6.0}),
    ],
)
def test_a_flag_wins_over_the_environment_and_without_either_the_engine_is_where_it_listens(
    flags: tuple[str, ...], environment: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settings_of(monkeypatch, *flags, **environment)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidSettingsError) as refused:
        AdapterSettings.read(url="http://me:secret@gpu-1:8000")
    assert str(refused.value).startswith("SPECPILOT_ENGINE_URL: holds a user name or a password in its address")


@pytest.mark.parametrize(
    "url", ["http://gpu-1:8000", "https://gpu-1", "http://[fd00::1]:8000/base/", "http://10.0.0.7:1"]
)
def test_an_address_is_taken_as_it_is(url: str) -> None:
    assert AdapterSettings.read(url=url).url == url


def test_every_setting_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_URL", "gpu-1")
    monkeypatch.setenv("SPECPILOT_ENGINE_STATIC_K", "-1")
    with pytest.raises(InvalidSettingsError, match=r"SPECPILOT_ENGINE_URL: .*; SPECPILOT_ENGINE_STATIC_K: "):
        AdapterSettings.read()


@pytest.mark.parametrize("value", ["", "many"])
def test_a_flag_that_is_no_number_is_named(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings_of(monkeypatch, f"--static-k={value}", "--pool=")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "specpilot engine: --static-k: must be a whole number\n"


def test_a_redis_that_does_not_answer_is_named_and_the_engine_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    assert settings_of(monkeypatch, "--redis-url", url).redis_url == url
    [line] = [line for line in capsys.readouterr().err.splitlines() if "--redis-url" in line]
    assert line.startswith("specpilot engine: warning: --redis-url: Redis does not answer: ")
    assert "serves without a controller, and registers when Redis answers" in line
    assert "secret" not in line


def test_other_plugins_load_as_without_the_adapter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, expected in ((None, {"specpilot", "lora_filesystem_resolver"}), ("mine,", {"mine", "specpilot"})):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        settings_of(monkeypatch, **({} if variable is None else {"VLLM_PLUGINS": variable}))
        assert set(os.environ["VLLM_PLUGINS"].split(",")) == expected
        assert "VLLM_PLUGINS" not in capsys.readouterr().err


def test_a_plugin_that_adds_routes_is_not_named_and_one_line_reports_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    with_adapter = plugin_names.with_adapter
    groups = {"vllm.general_plugins": ["a", "both", "specpilot"], "vllm.platform_plugins": ["b"]}
    groups["vllm.endpoint_plugins"] = ["both", "routes", "specpilot"]
    monkeypatch.setattr(plugin_names, "with_adapter", lambda named: with_adapter(named, lambda g: groups.get(g, [])))
    settings_of(monkeypatch)
    assert os.environ["VLLM_PLUGINS"] == "a,specpilot,b"
    [line] = [line for line in capsys.readouterr().err.splitlines() if "VLLM_PLUGINS" in line]
    assert "without both:" in line

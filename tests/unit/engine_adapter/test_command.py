"""The command and environment with which `specpilot engine` becomes vLLM."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from specpilot.engine_adapter import __main__ as command
from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.__main__ import main
from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import versions
from tests.support.refusals import refusal
from tests.support.stack import free_port


@pytest.fixture(autouse=True)
def own_folder_of_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name has the port, which tests in other processes give too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("any_vllm", "words"),
    [
        ("", "no engine of it was tested"),
        ("1", "--model: no model in ./nowhere"),
        ("perhaps", "SPECPILOT_ENGINE_ANY_VLLM: "),
    ],
)
def test_the_environment_accepts_an_untested_vllm_as_the_flag_does(
    any_vllm: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "ACCEPTED", ("0.1",))
    monkeypatch.setenv("SPECPILOT_ENGINE_ANY_VLLM", any_vllm)
    assert words in refusal(capsys, main, ["--model", "./nowhere"])


class _BecameVllmError(Exception):
    """What `exec` would have started."""


def settings_of(monkeypatch: pytest.MonkeyPatch, *flags: str, **environment: str) -> AdapterSettings:
    """The settings that the adapter finds in vLLM's processes."""

    def become(path: str, arguments: list[str], found: Mapping[str, str]) -> None:
        raise _BecameVllmError(found)

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(command, "_check_port", lambda host, port: None)
    for name in [name for name in os.environ if name.startswith("SPECPILOT_") or name == "REDIS_URL"]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(_BecameVllmError) as became:
        main(["--model", "some/model", "--port", "1", "--no-async-scheduling", "--any-vllm", *flags])
    for name, value in became.value.args[0].items():
        if name.startswith("SPECPILOT_") or name in ("REDIS_URL", "VLLM_PLUGINS"):
            monkeypatch.setenv(name, value)
    return AdapterSettings()


ENVIRONMENT = {"SPECPILOT_ENGINE_URL": "http://gpu-1:8000", "SPECPILOT_ENGINE_POOL": "h200", "REDIS_URL": "redis://x"}
FLAGS = ("--advertise-url", "http://gpu-2:8000", "--pool", "h100", "--redis-url", "redis://two")


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        (
            (),
            {**ENVIRONMENT, "SPECPILOT_ENGINE_REDIS_URL": "redis://one"},
            ("http://gpu-1:8000", "h200", "redis://one"),
        ),
        (FLAGS, ENVIRONMENT, ("http://gpu-2:8000", "h100", "redis://two")),
        (("--host", "0.0.0.0"), {"REDIS_URL": "redis://x"}, ("http://127.0.0.1:1", "default", "redis://x")),
    ],
)
def test_a_flag_wins_over_the_environment_and_without_either_the_engine_is_where_it_listens(
    flags: tuple[str, ...],
    environment: dict[str, str],
    expected: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = settings_of(monkeypatch, *flags, **environment)
    assert (found.url, found.pool, found.redis_url) == expected


def test_an_ipv6_address_is_put_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, "--host", "fd00::1").url == "http://[fd00::1]:1"
    assert settings_of(monkeypatch, "--host", "::").url == "http://127.0.0.1:1"


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


@pytest.mark.parametrize("url", NO_ADDRESSES)
@pytest.mark.parametrize("way", ["flag", "environment"])
def test_an_address_that_gateways_could_not_take_apart_ends_the_start_in_one_line(
    way: str, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_URL", url if way == "environment" else "http://gpu-1:8000")
    flags = ["--advertise-url", url] if way == "flag" else []
    said = "specpilot engine: SPECPILOT_ENGINE_URL: is no engine's address; write http://HOST:PORT\n"
    assert refusal(capsys, main, ["--model", "./nowhere", *flags]) == said


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


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SPECPILOT_ENGINE_REDIS_ULR", "did you mean SPECPILOT_ENGINE_REDIS_URL?"),
        ("SPECPILOT_ENGINE_K_MAX", "remove it, or take one that the documentation lists"),
        ("SPECPILOT_ENGINE_DRAFT_WIDTH", "remove it, or take one that the documentation lists"),
    ],
)
def test_a_variable_that_is_no_setting_ends_the_start_in_one_line(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(InvalidSettingsError):
        AdapterSettings.read()
    said = f"specpilot engine: {name}: there is no such setting; {remedy}\n"
    assert refusal(capsys, main, ["--model", "./nowhere"]) == said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max-num-seq", "8"), None),  # cut short, as vLLM takes it
        (("--a-plugins-own", "8"), None),
        (("--any-vllm", "--max-nun-seqs", "8"), None),  # which another vLLM may have
        (("--max-nun-seqs", "8"), "--max-nun-seqs: there is no such flag; did you mean --max-num-seqs?"),
        (("--static_k", "3"), None),  # as vLLM's own flags
        (
            ("--control-token", "a", "secret"),
            "a word belongs to no flag; quote a value that holds white space, name the model with --model",
        ),
        (("--speculative-config", '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": null}'), None),
        (("--least-l", "3"), "--least-l: there is no such flag; did you mean --least-k?"),
        (
            ("--speculative-config", '{"method": "eagle3", "model": "a/b", "num_speculative_tokens": "seven"}'),
            "--speculative-config: num_speculative_tokens: is seven; it must be a whole number",
        ),
    ],
)
def test_a_misspelt_flag_is_named_before_vllm_loads(
    flags: tuple[str, ...], said: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if said is None:
        settings_of(monkeypatch, *flags)
        return
    assert refusal(capsys, main, ["--model", "some/model", *flags]) == f"specpilot engine: {said}\n"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss:/r", "it is none of redis://"),
        ("http://user:secret@r", "'http://' is none of redis://"),
        ("redis://a,b", "it names several hosts; write redis+sentinel:// or redis+cluster://"),
        ("redis+sentinel://a", "it names no service"),
    ],
)
def test_a_redis_url_that_is_none_ends_the_start_before_the_model_loads(
    url: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(capsys, main, ["--model", "some/model", "--redis-url", url, "--any-vllm"])
    assert error.startswith("specpilot engine: --redis-url: ")
    assert said in error
    assert "secret" not in error


def test_a_redis_that_does_not_answer_is_named_and_the_engine_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    assert settings_of(monkeypatch, "--redis-url", url).redis_url == url
    [line] = [line for line in capsys.readouterr().err.splitlines() if "--redis-url" in line]
    assert line.startswith("specpilot engine: warning: --redis-url: Redis does not answer: ")
    assert "serves without a controller, and registers when Redis answers" in line
    assert "secret" not in line


@pytest.mark.parametrize(("value", "expected"), [("3", (3,)), ("1, 3", (1, 3)), ("", None)])
def test_the_k_that_get_graphs_are_a_list_by_commas(
    value: str, expected: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_of(monkeypatch, "--graph-k", value).graph_k == expected
    assert settings_of(monkeypatch, SPECPILOT_ENGINE_GRAPH_K=value).graph_k == expected


@pytest.mark.parametrize("way", ["flag", "environment"])
@pytest.mark.parametrize("value", ["many", "1,", "-1"])
def test_what_is_no_list_of_k_ends_the_start_in_one_line(
    way: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if way == "environment":
        monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", value)
    assert refusal(capsys, main, ["--model", "./nowhere", *((f"--graph-k={value}",) if way == "flag" else ())]) == (
        f"specpilot engine: SPECPILOT_ENGINE_GRAPH_K: {value!r} is no list of K; "
        "write whole numbers from 0 on, by commas: 1,3\n"
    )


@pytest.mark.parametrize(("flag", "value"), [("static-k", "-1"), ("least-k", "65")])
def test_a_flag_out_of_range_ends_the_start_in_one_line(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = refusal(capsys, main, ["--model", "./nowhere", f"--{flag}", value, "--any-vllm"]).splitlines()
    assert line.startswith(f"specpilot engine: SPECPILOT_ENGINE_{flag.upper().replace('-', '_')}: ")


def test_the_flags_of_a_setting_reach_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, "--static-k", "0", "--engine-id", "e1")
    assert (settings.static_k, settings.id) == (0, "e1")
    assert settings.any_vllm  # as every start here
    assert not settings.trust_this_machine


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

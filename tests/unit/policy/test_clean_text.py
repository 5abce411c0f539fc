"""The rule for secrets and addresses, and that every program follows it."""

import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from specpilot.controller.cli.client import AdminSettings
from specpilot.controller.settings import ControllerSettings
from specpilot.engine_adapter.__main__ import _with_clean_keys
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.gateway.engines.snapshot import keys_of
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.access import sha256_of
from specpilot.policy.clean_text import fault_of, has_login, is_address, secret, stripped
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.settings import ProgramSettings, load
from specpilot.up_settings import UpSettings
from tests.support.refusals import refusal

KINDS: list[type[ProgramSettings]] = [GatewaySettings, ControllerSettings, UpSettings, AdminSettings]
NEEDED = {"redis_url": "redis://127.0.0.1:6379/0"}


@pytest.mark.parametrize("text", ["sk-abc\n", "\r\nsk-abc ", "\tsk-abc", "\ufeffsk-abc\n", "\u00a0sk-abc"])
def test_white_space_around_a_secret_goes(text: str) -> None:
    assert stripped(text) == secret("x", text) == "sk-abc"


@pytest.mark.parametrize("text", ["sk\nabc", "sk\r\nabc", "sk\x00abc", "sk\x7fabc", "sk\x85abc", "sk-\u00e4bc", " \n"])
def test_what_no_header_can_carry_is_refused_without_a_part_of_it(text: str) -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        secret("the key", text)
    assert "the key" in str(caught.value)
    assert "sk" not in str(caught.value)


def test_an_address_may_hold_other_letters_but_no_control_characters() -> None:
    assert fault_of("http://b\u00fccher.example") is None
    assert fault_of("http://a\nb") == "holds the control character U+000A; state it without"
    assert fault_of("a\udcff") == "is not UTF-8"
    assert has_login("none=HTTP://u:p@h")
    assert not has_login("http://h/@x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://10.0.0.7:9/base", True),
        ("HTTPS://b\u00fccher.example", True),
        ("http://[fd00::1]:8000", True),
        ("http://u:p@h", True),
        ("h:8081", False),
        ("http://", False),
        ("http://h:port", False),
        ("http://h:65536", False),
        ("http://h:0", False),
        ("http://[::1", False),
        ("http://a b", False),
        ("http://u:a/b@h", False),
        ("http://h?x=1", False),
        ("http://h/#x", False),
        ("http://a..b", False),
        ("http://" + 64 * "a", False),
        ("http://h/p\u00e4th", False),
    ],
)
def test_what_is_the_address_of_a_web_server(text: str, expected: bool) -> None:
    assert is_address(text) is expected


def _texts(kind: type[ProgramSettings]) -> list[str]:
    return [
        name
        for name, item in kind.model_fields.items()
        if name.endswith(("token", "key", "url", "issuer", "prometheus"))
        and name not in kind.free_text
        and "str" in str(item.annotation).lower()
    ]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in _texts(kind)])
@pytest.mark.parametrize("way", ["flag", "environment"])
def test_every_secret_and_address_of_a_program_follows_the_rule(
    kind: type[ProgramSettings],
    name: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = "http://127.0.0.1:9" if name in ("admin_url", "oidc_issuer", "prometheus") else "sk-word"
    good = NEEDED.get(name, good)
    more = {**NEEDED, "oidc_audience": "a", "oidc_roles": "sre=admin"}

    def read(value: str) -> ProgramSettings:
        arguments = [
            word
            for other, text in more.items()
            if other in kind.model_fields and other != name
            for word in ("--" + other.replace("_", "-"), text)
        ]
        variable = "REDIS_URL" if name == "redis_url" else f"{kind.model_config['env_prefix']}{name.upper()}"
        if way == "environment":
            monkeypatch.setenv("SPECPILOT_ADMIN_TOKEN" if name == "token" else variable, value)
        else:
            arguments += [f"--{name.replace('_', '-')}={value}"]
        return load(kind, "program", arguments)

    with caplog.at_level(logging.WARNING):
        found = getattr(read(f" {good}\n"), name)
    assert (found.get_secret_value() if isinstance(found, SecretStr) else found) == good
    assert f"--{name.replace('_', '-')}: white space around the value was removed" in caplog.messages
    said = refusal(capsys, read, f"{good}\nx-evil: 1")
    assert "U+000A" in said
    assert good not in said
    assert "x-evil" not in said


def test_the_adapter_and_vllm_get_clean_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", "sk-word\n")
    token = AdapterSettings.read().control_token
    assert token is not None
    assert token.get_secret_value() == "sk-word"
    environment = {"VLLM_API_KEY": "sk-word\n"}
    flags = ["--seed", "1", "--api-key", "a\n", "b ", "--x", "y ", "--hf-token", "c\n"]
    assert _with_clean_keys(flags, environment) == [*flags[:3], "a", "b", "--x", "y ", "--hf-token", "c"]
    assert environment == {"VLLM_API_KEY": "sk-word"}
    said = capsys.readouterr().err.splitlines()
    names = ["VLLM_API_KEY", "--api-key", "--api-key", "--hf-token"]
    assert said == [f"specpilot engine: warning: {name}: white space around the value was removed" for name in names]
    for flag in ("--api_key=sk-word\nx", "--hf-token=sk-word\nx"):
        assert "sk-word" not in refusal(capsys, _with_clean_keys, [flag], {})


def test_the_keys_of_a_file_are_clean() -> None:
    said: list[str] = []
    [key, _] = keys_of([{"key_id": "a", "key": "sk-word\n"}, {"key_id": "b", "key": "sk-other"}], said.append)
    assert key.sha256 == sha256_of("sk-word")
    assert said == ["[0].key: white space around the value was removed"]
    with pytest.raises(InvalidDocumentError) as caught:
        keys_of([{"key_id": "a", "key": "sk-word\nx"}, {"key_id": "b", "key": "\n"}])
    assert "sk-word" not in str(caught.value)
    assert [fault.field for fault in caught.value.faults] == ["[0].key", "[1].key"]


def test_json_and_flags_may_have_line_breaks(tmp_path: Path) -> None:
    arguments = ["--policy", '{"model":\n"demo"}\n', "--engine-args", "--a 1\n--b 2", "--state-dir", str(tmp_path)]
    settings = load(UpSettings, "specpilot up", arguments)
    assert settings.policy == '{"model":\n"demo"}\n'
    assert load(GatewaySettings, "specpilot gateway", ["--engine", "http://a:1,\n http://b:2\n"]).engine == (
        "http://a:1",
        "http://b:2",
    )

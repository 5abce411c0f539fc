"""Malformed secrets, thrown at every command and program as flag, variable and file: none is in what they print."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot.gateway.telemetry.otel import OtelTracing
from tests.support.commands import run
from tests.support.controller_program import TOKEN, running_controller
from tests.support.stack import free_port

MARK = "hunter2secret"
SECRETS = (
    f"{MARK}\nx-evil: 1",
    f"{MARK}\x07",
    f"{MARK}\u00e4",
    f"\ufeff{MARK}\u20ac",
    f"{MARK}\r\n",
    f"-{MARK}",
    f"--{MARK}={MARK}",
    f"{MARK} {MARK}",
)
URLS = (
    f"redis://:{MARK}?{MARK}@127.0.0.1:9",
    f"redis://:{MARK}?{MARK}={MARK}@127.0.0.1:9",
    f"redis://u:{MARK}@127.0.0.1:port",
    f"redis://u:{MARK}@127.0.0.1:9/{'x'}",
    f"redis://u:{MARK}@127.0.0.1:9\nx",
    f"redis://u:{MARK}@127.0.0.1:9?nothing=1",
    f"redis://u:{MARK}@127.0.0.1:9?ssl_certfile={MARK}",
    f"redis:/u:{MARK}@127.0.0.1:9",
    f"http://u:{MARK}@127.0.0.1:9",
)
LOGINS = (
    f"http://u:{MARK}@127.0.0.1:9",
    f"http://{MARK}@127.0.0.1:9/x",
    f"http://u:{MARK}@127.0.0.1:9\nx",
    f"HTTP://u:{MARK}@127.0.0.1:9",
    f"http://u:a/{MARK}@127.0.0.1:9",
    f"http://127.0.0.1:{MARK}",
    f"http://[{MARK}]:9",
)
QUERIES = (f"ftp://127.0.0.1:9/?token={MARK}", f"127.0.0.1:9?token={MARK}")
ADMIN_COMMANDS = (
    ("policy", "list"),
    ("policy", "get", "m"),
    ("freeze", "list"),
    ("audit",),
    ("token", "list"),
    ("key", "list"),
    ("models",),
    ("explain", "--model", "m"),
    ("export", "--model", "m", "--pool", "p"),
)
MALFORMED = SECRETS[:4]
"""Those with which no program starts, quoted or not."""
REDIS = ("--redis-url", "redis://127.0.0.1:9")
ENGINE = ("engine", "--model", "m", "--any-vllm")


def _cases() -> Iterator[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Each program with its arguments, a flag or a variable that takes a secret, and the texts to throw."""
    for words in ADMIN_COMMANDS:
        yield (*words, "--admin-url", "http://127.0.0.1:9"), "--token", SECRETS
        yield words, "--admin-url", (*LOGINS, *QUERIES, f"http://127.0.0.1:9?token={MARK}")
    yield ("policy", "list", "--admin-url", "http://127.0.0.1:9"), "SPECPILOT_ADMIN_TOKEN", SECRETS
    for program in ("gateway", "controller", "up"):
        yield (program, *REDIS), "--admin-token", MALFORMED
        yield (program, *REDIS), f"SPECPILOT_{program.upper()}_ADMIN_TOKEN", MALFORMED
        yield (program,), "--redis-url", URLS
        yield (program,), "REDIS_URL", URLS
    yield ("gateway", *REDIS), "--engine-api-key", MALFORMED
    yield ("gateway", *REDIS), "SPECPILOT_GATEWAY_ENGINE_API_KEY", MALFORMED
    yield ("gateway", *REDIS), "--engine", (*LOGINS, *QUERIES, f"http://127.0.0.1:9?token={MARK}")
    yield ("controller", *REDIS), "--oidc-issuer", (*LOGINS, *QUERIES)
    yield ("controller", *REDIS), "--prometheus", (*LOGINS, *QUERIES)
    yield ENGINE, "--control-token", MALFORMED
    yield ENGINE, "SPECPILOT_ENGINE_CONTROL_TOKEN", MALFORMED
    yield ENGINE, "--gateway-key", MALFORMED
    yield ENGINE, "SPECPILOT_ENGINE_GATEWAY_KEY", MALFORMED
    yield ENGINE, "--api-key", MALFORMED
    yield ENGINE, "VLLM_API_KEY", MALFORMED
    yield ENGINE, "--hf-token", MALFORMED
    yield ENGINE, "--redis-url", URLS
    yield ENGINE, "--advertise-url", (*LOGINS, *QUERIES)
    yield ("bench", "sweep", "--endpoints", "none=http://127.0.0.1:9"), "--control-token", SECRETS
    yield ("bench", "sweep"), "--endpoints", tuple(f"none={url}" for url in (*LOGINS, *QUERIES))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECPILOT_ADMIN_URL", "http://127.0.0.1:9")  # by default that of a system on this machine


def _said(words: tuple[str, ...]) -> tuple[int, str]:
    """Run a command; return its exit status, and all that it printed or logged."""
    done = run(*words)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "name", "texts"), list(_cases()), ids=lambda item: " ".join(item) if isinstance(item, tuple) else item
)
def test_no_command_prints_a_secret(
    words: tuple[str, ...], name: str, texts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in texts:
        ways: list[tuple[str, ...]] = [(name, text), (f"{name}={text}",)]
        if words[0] not in ("engine", "up"):  # vLLM's flags are not known, and up may start
            ways.append((name, *text.split()))
        if not name.startswith("--"):
            monkeypatch.setenv(name, text)
            ways = [()]
        if not name.startswith("--") and text.startswith("-"):
            continue  # a good secret, if it is no word on a command line
        for way in ways:
            status, said = _said((*words, *way))
            assert status != 0, (way, said)
            assert MARK not in said, way
            assert "Traceback" not in said, way


@pytest.mark.parametrize("flag", ["--to=", "--tokn=", "--a=", "--no-such=", "-t", "-p", None])
def test_a_secret_behind_a_flag_that_is_cut_or_misspelt_or_joined_to_it_is_not_printed(
    flag: str | None,
) -> None:
    own = {("gateway", *REDIS): "--admin-token", ("key", "list"): "--token", ("bench", "sweep"): "--control-token"}
    for words, joined in {("controller", *REDIS): "--admin-token", **own}.items():
        status, said = _said((*words, f"{flag or joined}{MARK}"))
        assert status != 0
        assert MARK not in said


@pytest.mark.parametrize(
    "flag", ["--control-tokn", "--control", "--gateway_ky", "--api-ke", "--redis-ur", "--hf-tokens", f"--api-key{MARK}"]
)
def test_a_misspelt_flag_of_a_secret_does_not_reach_vllm_which_would_print_it(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("vLLM was started"))
    for words in ((f"{flag}={MARK}",), (flag, MARK)):
        status, said = _said((*ENGINE, "--port", str(free_port()), *words))
        assert status == 2
        assert "did you mean --" in said
        assert MARK not in said


@pytest.mark.parametrize("headers", [MARK, f"authorization={MARK}%0Ax", f"a=b,authorization={MARK}\x07"])
def test_headers_for_traces_are_not_printed(headers: str) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_HEADERS": headers}
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_HEADERS: header [12] ") as caught:
        OtelTracing(environment, "http")
    assert MARK not in str(caught.value)


@pytest.mark.parametrize("content", [f'[{{"key_id": "a", "key": "{MARK}\\nx"}}]', f'[{{"key": "{MARK}"', f"{MARK}"])
def test_a_keys_file_is_not_printed(content: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(content)
    flags = ("--engine", "http://127.0.0.1:9", "--port", str(free_port()), "--api-keys-file", str(keys))
    status, said = _said(("gateway", *flags))
    assert status == 2
    assert MARK not in said


@pytest.mark.parametrize(
    "words",
    [(), ("key",), ("token",), ("policy",), ("policy", "canary"), ("models",), ("freeze",), ("bench",)],
    ids=" ".join,
)
def test_a_secret_in_place_of_a_command_is_not_printed(words: tuple[str, ...]) -> None:
    for text in (MARK, f"{MARK}={MARK}"):
        status, said = _said((*words, text))
        assert status != 0
        assert MARK not in said


def test_a_secret_in_place_of_an_id_is_neither_answered_nor_logged_nor_audited(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, running_controller(log=file) as controller:
        made = controller.call("/admin/keys", "POST", {})[1]["key"]
        token = controller.call("/admin/tokens", "POST", {"name": "ada", "role": "viewer"})[1]["token"]
        for kind, secret in (("keys", made), ("tokens", token)):
            for path, method in (("", "DELETE"), ("/rotate", "POST"), ("", "PATCH")):
                for caller in (TOKEN, "wrong"):
                    status, answer, _ = controller.call(f"/admin/{kind}/{secret}{path}", method, token=caller)
                    assert status in (401, 404, 405, 422)
                    assert secret not in str(answer)
            for words in (("revoke", secret), ("rotate", secret), ("revoke", f"{secret} {secret}"), (secret,)):
                told = controller.command(kind[:-1], *words)
                assert told.returncode != 0
                assert secret not in told.stdout + told.stderr
        audit = controller.call("/admin/audit")[1]
        assert len(audit["entries"]) > 10
        said = str(audit) + log.read_text()
        assert made not in said
        assert token not in said
        [unknown, *_] = (item for item in audit["entries"] if item["code"] == "key_not_found")
        assert (unknown["subject"], unknown["message"]) == ("", "there is no key of this id")
        status, answer, _ = controller.call(f"/admin/keys/{'a' * 12}", "DELETE")
        assert (status, answer["error"]["message"]) == (404, f"there is no key '{'a' * 12}'")

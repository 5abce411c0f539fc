"""How programs read settings from the environment, and how they show them."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from specpilot.cli import COMMANDS
from specpilot.policy.settings import ProgramSettings, load, without_secrets
from tests.support.refusals import refusal
from tests.support.stack import ROOT

MODULES = [
    ".".join(("specpilot", *path.relative_to(ROOT).with_suffix("").parts))
    for path in Path(ROOT, "bench").rglob("*.py")
    if "(ProgramSettings)" in path.read_text()
]


class ToolSettings(ProgramSettings):
    """Settings of a program with one name of each kind."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_TOOL_")

    port: int = 1
    tick_s: float = 1.0
    redis_url: str | None = Field(None, validation_alias=AliasChoices("redis_url", "REDIS_URL"))


class BroadSettings(ToolSettings):
    """The same for a program whose prefix other programs' variables begin with."""

    shares_prefix = True


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SPECPILOT_TOOL_PROT", "did you mean SPECPILOT_TOOL_PORT?"),
        ("SPECPILOT_TOOL_REDIS_ULR", "did you mean SPECPILOT_TOOL_REDIS_URL?"),
        ("specpilot_tool_tick", "did you mean SPECPILOT_TOOL_TICK_S?"),
        ("SPECPILOT_TOOL_MY_PORT", "did you mean SPECPILOT_TOOL_PORT?"),
        ("SPECPILOT_TOOL_COLOUR", "remove it, or take one that the documentation lists"),
    ],
)
def test_a_variable_that_is_no_setting_ends_the_start_in_one_line(
    name: str, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "2")
    said = refusal(capsys, load, ToolSettings, "tool", ())
    assert said == f"tool: {name}: there is no such setting; {remedy}\n"
    assert load(BroadSettings, "tool", ()).port == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prot", "9090"), "--prot: there is no such flag; did you mean --port?"),
        (("--tikc-s=secret",), "--tikc-s: there is no such flag; did you mean --tick-s?"),
        (("--colour", "red"), "--colour: there is no such flag; --help lists the flags"),
        (("--tick-ssecret",), "--tick-s...: there is no such flag; did you mean --tick-s?"),
        (("-tsecret",), "-t: there is no such flag; --help lists the flags"),
        (
            ("more",),
            "more arguments than expected; quote a value that holds white space; --help lists the arguments",
        ),
        (("--port",), "argument --port: expected one argument; --help lists the arguments"),
    ],
)
def test_a_wrong_flag_ends_the_start_in_one_line_with_a_remedy(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, load, ToolSettings, "tool", arguments) == f"tool: {said}\n"


LINKS = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "80",
    "SERVICE_PORT_HTTP": "80",
    "PORT_80_TCP": "tcp://10.0.0.1:80",
    "PORT_80_TCP_PROTO": "tcp",
    "PORT_80_TCP_PORT": "80",
    "PORT_80_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["TOOL", "TOOL_H200", "TOOL_0", "TOOLS"])
def test_variables_that_kubernetes_adds_for_a_service_are_ignored(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in LINKS.items():
        monkeypatch.setenv(f"SPECPILOT_{service}_{name}", value)
    if service != "TOOL":  # whose port it is
        monkeypatch.setenv(f"SPECPILOT_{service}_PORT", "tcp://10.0.0.1:80")
    assert load(ToolSettings, "tool", ("--tick-s", "2")).tick_s == 2.0


def test_every_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"PORT": "2", "tick_s": "3", "REDIS_URL": "redis://one"}
    for name, value in values.items():
        monkeypatch.setenv("SPECPILOT_TOOL_" + name, value)
    found = load(ToolSettings, "tool", ())
    assert (found.port, found.tick_s, found.redis_url) == (2, 3.0, "redis://one")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://user:hush@host:1/0", "redis://***@host:1/0"),
        ("redis://user:hu@sh@host:1/0", "redis://***@host:1/0"),
        ("rediss://host:1/0?password=hush&db=1", "rediss://host:1/0?***"),
        ("unix://user:hush@/run/redis.sock?password=hush", "unix://***@/run/redis.sock?***"),
        ("user:hush@host", "***@host"),
        ("host:1?password=hush", "host:1?***"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def programs(kind: type[ProgramSettings] = ProgramSettings) -> Iterator[type[ProgramSettings]]:
    """The settings of every program."""
    for program in kind.__subclasses__():
        if not program.__module__.startswith("tests."):
            yield program
            yield from programs(program)


def test_no_program_takes_another_ones_variables_for_misspelt_ones_of_its_own() -> None:
    for name in [target.partition(":")[0] for target, _ in COMMANDS.values()] + MODULES:
        import_module(name)
    found = {program: program.model_config["env_prefix"] for program in programs()}
    assert len(found) > 10
    for program, prefix in found.items():
        assert prefix.startswith("SPECPILOT_")
        others = {other for kind, other in found.items() if not issubclass(kind, program) and other != prefix}
        assert program.shares_prefix or not any(other.startswith(prefix) for other in others), program

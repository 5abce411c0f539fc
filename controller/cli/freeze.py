"""`specpilot freeze`: freezes K of one model or of all, through the admin API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field
from pydantic_settings import CliPositionalArg, SettingsConfigDict

from specpilot.controller.cli import text
from specpilot.controller.cli.client import AdminClient, AdminWriter, WriteSettings
from specpilot.controller.cli.credentials import Duration
from specpilot.controller.cli.text import say
from specpilot.policy.clock import utc
from specpilot.policy.settings import fail, load

PROGRAM = "specpilot freeze"


class FreezeSettings(WriteSettings):
    """Freezes K of MODEL, or of every model with --all, until it is lifted or for a time; lists with --list."""

    model_config = SettingsConfigDict(populate_by_name=False)

    model: CliPositionalArg[str] = ""
    everything: Annotated[bool, Field(description="every model, instead of one", alias="all")] = False
    hold: Annotated[Literal["current", "static"], Field(description="the present K, or the static K")] = "current"
    duration: Annotated[Duration | None, Field(description="duration: 90s, 10m, 2h, 1d", alias="for")] = None
    lift: Annotated[bool, Field(description="end the freeze")] = False
    replace: Annotated[bool, Field(description="replace a freeze that somebody else began")] = False
    show: Annotated[bool, Field(description="list the freezes in force", alias="list")] = False


def main(arguments: Sequence[str]) -> None:
    """Freeze, lift or list; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    settings = load(FreezeSettings, PROGRAM, arguments)
    client = AdminWriter(settings, PROGRAM)
    if settings.show:
        _list(client)
        return
    if bool(settings.model) == settings.everything:
        fail(PROGRAM, "name one model, or give --all")
    name = settings.model or "everything"
    path = "/admin/freezes" + ("/" + quote(settings.model) if settings.model else "")
    warning: list[str] = []
    if settings.model and not settings.lift:
        warning = text.unless_it_runs(settings.model, client.ask("/admin/engines")["engines"])
    if settings.lift:
        client.write("DELETE", path)
        say(f"{name} is not frozen any more")
    else:
        say(f"{name} is frozen: {_line(client.write('PUT', path, _body(settings), warning=lambda: warning))}")


def _body(settings: FreezeSettings) -> dict[str, object]:
    body: dict[str, object] = {"hold": settings.hold}
    if settings.replace:
        body["replace"] = True
    if settings.duration is not None:
        body["for_s"] = text.duration_s(settings.duration)
    return body


def _list(client: AdminClient) -> None:
    freezes = client.ask("/admin/freezes")["freezes"]
    for item in freezes:
        name = "everything" if item["model"] == "*" else item["model"]
        comment = f"  # {item['comment']}" if item["comment"] else ""
        say(f"{name}: {_line(item)}, by {item['author']}{comment}")
    if not freezes:
        say("nothing is frozen")


def _line(item: dict[str, Any]) -> str:
    held = "the static K" if item["hold"] == "static" else "K as it was when the freeze began"
    return f"{held}, until {'it is lifted' if item['until'] is None else utc(item['until'])}"

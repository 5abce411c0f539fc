"""`specpilot models`: the routes from model names in requests to models, through the admin API."""

import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from specpilot.controller.cli import text
from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.controller.cli.words import parsed
from specpilot.policy.settings import fail, load

PROGRAM = "specpilot models"
_PATH = "/admin/model-routes"
_USAGE = """usage: specpilot models COMMAND [--admin-url URL] [--token TOKEN] ...

  list                              every name that has a route
  set NAME MODEL                    an alias: MODEL serves requests for NAME
  set NAME MODEL=9 MODEL=1          a split by weight
  set NAME [MODEL ...] --fallback A,B
                                    A, else B, while the chosen model (NAME, without MODEL) has no engine
  remove NAME                       remove the route of NAME

  --dry-run                         with set and remove: show the effect, and write nothing
  --comment TEXT                    the purpose; goes into the audit
"""


class ModelsSettings(AdminSettings):
    """Lists, sets and removes model routes through the admin API."""

    fallback: Annotated[str, Field(description="models to fall back to, by commas")] = ""
    dry_run: Annotated[bool, Field(description="show the effect, and write nothing")] = False
    comment: Annotated[str, Field(description="the purpose; goes into the audit")] = ""


def main(arguments: Sequence[str] | None = None) -> None:
    """`specpilot models`; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    commands = {"list": "", "set": "name [model...]", "remove": "name"}
    command, names, rest = parsed(arguments, commands, PROGRAM, _USAGE)
    settings = load(ModelsSettings, f"{PROGRAM} {command}", rest)
    client = AdminClient(settings, PROGRAM)
    if command == "list":
        _list(client)
    elif command == "set":
        _write(client, settings, names[0], _route(names[1:], settings.fallback))
    elif names[0] in client.ask(_PATH)["routes"]:
        _write(client, settings, names[0], None)
    else:
        client.refuse(f"{names[0]!r} has no route; `specpilot models list` lists the names with one")


def _route(targets: Sequence[str], fallback: str) -> dict[str, Any]:
    split = []
    for target in targets:
        model, equals, weight = target.rpartition("=")
        try:
            split.append({"model": model, "weight": _weight(weight)} if equals else {"model": target})
        except ValueError:
            fail(PROGRAM, f"set: {target!r}: {weight!r} is no weight; give MODEL or MODEL=9")
    return {"split": split, "fallback": [name.strip() for name in fallback.split(",") if name.strip()]}


def _weight(text: str) -> float:
    weight = float(text)
    if not 0 < weight < math.inf:
        raise ValueError
    return weight


def _write(client: AdminClient, settings: ModelsSettings, name: str, route: dict[str, Any] | None) -> None:
    change = {"routes": {name: route}}
    answer = client.write("PATCH", _PATH, change, settings.comment, is_dry_run=settings.dry_run)
    if answer.get("dry_run"):
        sys.stdout.write(text.dry_run(answer))
    elif route is None:
        sys.stdout.write(f"removed the route of {name}\n")
    else:
        sys.stdout.write(_line(name, text.printable(answer["routes"][name])))


def _list(client: AdminClient) -> None:
    routes = client.read(_PATH)["routes"]
    for name in sorted(routes):
        sys.stdout.write(_line(name, routes[name]))
    if not routes:
        sys.stdout.write("no name has a route\n")


def _line(name: str, route: dict[str, Any]) -> str:
    split = route["split"]
    total = sum(target["weight"] for target in split)
    shares = [f"{target['model']} {100 * target['weight'] / total:.3g} %" for target in split]
    served = ", ".join(shares) if len(split) > 1 else split[0]["model"] if split else name
    fallback = f"; else {', '.join(route['fallback'])}" if route["fallback"] else ""
    return f"{name}  served by {served}{fallback}\n"

"""`specpilot models`: the routes from model names in requests to models, through the admin API."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from specpilot.controller.cli.client import AdminClient, AdminWriter, WriteSettings
from specpilot.controller.cli.text import say
from specpilot.controller.cli.words import parsed
from specpilot.policy.settings import fail

PROGRAM = "specpilot models"
_PATH = "/admin/model-routes"
_USAGE = """usage: specpilot models COMMAND [--admin-url URL] [--token TOKEN] ...

  list                              every name that has a route
  set NAME [MODEL ...]              an alias: MODEL serves requests for NAME; MODEL=9 MODEL=1: a split by weight
    --fallback A,B                  A, else B, while the chosen model (NAME, without MODEL) has no engine
  remove NAME                       remove the route of NAME

  --dry-run                         with set and remove: show the effect, and write nothing
  --comment TEXT                    the purpose; goes into the audit
"""


class ModelsSettings(WriteSettings):
    """Lists, sets and removes model routes through the admin API."""

    fallback: Annotated[str, Field(description="models to fall back to, by commas")] = ""


def main(arguments: Sequence[str]) -> None:
    """`specpilot models`; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    command, names, settings = parsed(arguments, PROGRAM, _USAGE, ModelsSettings)
    client = AdminWriter(settings, PROGRAM)
    if command == "list":
        _list(client)
    elif command == "set":
        route = _route(names[1:], settings.fallback)
        answer = client.write("PATCH", _PATH, {"routes": {names[0]: route}})
        say(_line(names[0], answer["routes"][names[0]]))
    elif names[0] in client.ask(_PATH)["routes"]:
        client.write("PATCH", _PATH, {"routes": {names[0]: None}})
        say(f"removed the route of {names[0]}")
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


def _list(client: AdminClient) -> None:
    routes = client.ask(_PATH)["routes"]
    for name in sorted(routes):
        say(_line(name, routes[name]))
    if not routes:
        say("no name has a route")


def _line(name: str, route: dict[str, Any]) -> str:
    split = route["split"]
    total = sum(target["weight"] for target in split)
    shares = [f"{target['model']} {100 * target['weight'] / total:.3g} %" for target in split]
    served = ", ".join(shares) if len(split) > 1 else split[0]["model"] if split else name
    fallback = f"; else {', '.join(route['fallback'])}" if route["fallback"] else ""
    return f"{name}  served by {served}{fallback}"

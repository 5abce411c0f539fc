"""`specpilot policy`: lists, reads, writes and deletes policies through the admin API."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field

from controller.admin_client import AdminClient, AdminSettings
from policy.settings import fail, load

PROGRAM = "specpilot policy"
USAGE = """usage: specpilot policy COMMAND [--admin-url URL] [--token TOKEN] ...

  list                      every policy
  get MODEL                 one policy
  put FILE [--version N]    write the policy in FILE (- for standard input); with --version only over that one
  delete MODEL [--version N]
"""
_TAKES_A_NAME = ("get", "put", "delete")


class PolicySettings(AdminSettings):
    """Lists, reads, writes and deletes policies through the admin API."""

    version: Annotated[
        int | None, Field(description="write only if the policy is at this version; default: whatever it is now", ge=0)
    ] = None


def main(arguments: Sequence[str] | None = None) -> None:
    """Do one command; status 1 when the controller refuses, 2 when the arguments are wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        sys.stdout.write(USAGE)
        sys.exit(0 if words else 2)
    command = words.pop(0)
    name = ""
    if command in _TAKES_A_NAME:
        if not words or (words[0].startswith("-") and words[0] != "-"):
            fail(PROGRAM, f"{command}: name the {'file' if command == 'put' else 'model'}, as in {USAGE}")
        name = words.pop(0)
    elif command != "list":
        fail(PROGRAM, f"no command {command!r}; choose list, get, put or delete")
    settings = load(PolicySettings, f"{PROGRAM} {command}", words)
    client = AdminClient(settings, PROGRAM)
    if command == "list":
        _list(client)
    elif command == "get":
        _print(client.ask(_path(name))[0])
    elif command == "put":
        _put(client, name, settings.version)
    else:
        headers = {} if settings.version is None else {"If-Match": f'"{settings.version}"'}
        client.ask(_path(name), "DELETE", headers=headers)
        sys.stdout.write(f"deleted the policy of {name}\n")


def _list(client: AdminClient) -> None:
    answer, _ = client.ask("/admin/policies")
    for item in answer["policies"]:
        policy = item["policy"]
        classes = ", ".join(sorted(policy["classes"])) or "default only"
        sys.stdout.write(f"{policy['model']}  version {item['version']}  mode {policy['mode']}  classes: {classes}\n")


def _put(client: AdminClient, file: str, version: int | None) -> None:
    document = _read(file)
    path = _path(str(document["model"]))
    if version is None:
        found = client.find(path)
        version = found[0]["version"] if found else 0
    headers = {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
    _print(client.ask(path, "PUT", json.dumps(document).encode(), headers)[0])


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(PROGRAM, f"put: {file} cannot be read: {error}")
    try:
        document = json.loads(text)
    except ValueError as error:
        fail(PROGRAM, f"put: {file} is no JSON: {error}")
    if isinstance(document, dict) and isinstance(document.get("policy"), dict):
        document = document["policy"]  # what `get` printed may be edited and put back
    if not isinstance(document, dict) or not isinstance(document.get("model"), str):
        fail(PROGRAM, f'put: {file} must hold an object that names its model, as in {{"model": "...", ...}}')
    return document


def _path(model: str) -> str:
    return "/admin/policies/" + quote(model)


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

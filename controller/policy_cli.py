"""`specpilot policy`: lists, reads, writes and deletes policies, and tries them as canaries, through the admin API."""

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
  canary start FILE         try the policy in FILE: {"policy": {"model": ..., ...}, "share_ratio": 0.5, ...}
  canary show MODEL         the running or latest canary of a model
  canary promote MODEL      end it now, and make its policy the model's
  canary abort MODEL        end it now, and keep the present policy
"""
_TAKES_A_FILE = ("put", "canary start")
_TAKES_A_NAME = (*_TAKES_A_FILE, "get", "delete", "canary show", "canary promote", "canary abort")


class PolicySettings(AdminSettings):
    """Lists, reads, writes, deletes and tries policies through the admin API."""

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
    if command == "canary":
        command = f"canary {words.pop(0) if words else ''}"
    name = ""
    if command in _TAKES_A_NAME:
        if not words or (words[0].startswith("-") and words[0] != "-"):
            fail(PROGRAM, f"{command}: name the {'file' if command in _TAKES_A_FILE else 'model'}, as in {USAGE}")
        name = words.pop(0)
    elif command != "list":
        fail(PROGRAM, f"no command {command!r}; choose list, get, put, delete or canary start, show, promote, abort")
    settings = load(PolicySettings, f"{PROGRAM} {command}", words)
    client = AdminClient(settings, PROGRAM)
    if command == "list":
        _list(client)
    elif command == "get":
        _print(client.ask(_path(name))[0])
    elif command == "put":
        _put(client, name, settings.version)
    elif command.startswith("canary"):
        _canary(client, command.removeprefix("canary "), name)
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
    document = _policy_in(file)
    path = _path(str(document["model"]))
    if version is None:
        found = client.find(path)
        version = found[0]["version"] if found else 0
    headers = {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
    _print(client.ask(path, "PUT", json.dumps(document).encode(), headers)[0])


def _canary(client: AdminClient, command: str, name: str) -> None:
    if command == "start":
        document = _read(name, "canary start")
        policy = document.get("policy")
        if not isinstance(policy, dict) or not isinstance(policy.get("model"), str):
            fail(PROGRAM, f'canary start: {name} must name the model, as in {{"policy": {{"model": "...", ...}}}}')
        answer = client.ask(_canary_path(str(policy["model"])), "PUT", json.dumps(document).encode())
    elif command == "promote":
        answer = client.ask("/admin/canary-promotions/" + quote(name), "POST")
    else:
        answer = client.ask(_canary_path(name), "GET" if command == "show" else "DELETE")
    _print(answer[0])


def _canary_path(model: str) -> str:
    return "/admin/canaries/" + quote(model)


def _policy_in(file: str) -> dict[str, Any]:
    document = _read(file, "put")
    if isinstance(document.get("policy"), dict):
        document = document["policy"]  # what `get` printed may be edited and put back
    if not isinstance(document.get("model"), str):
        fail(PROGRAM, f'put: {file} must hold an object that names its model, as in {{"model": "...", ...}}')
    return document


def _read(file: str, command: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fail(PROGRAM, f"{command}: {file} cannot be read: {error}")
    try:
        document = json.loads(text)
    except ValueError as error:
        fail(PROGRAM, f"{command}: {file} is no JSON: {error}")
    if not isinstance(document, dict):
        fail(PROGRAM, f"{command}: {file} must hold a JSON object")
    return document


def _path(model: str) -> str:
    return "/admin/policies/" + quote(model)


def _print(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()

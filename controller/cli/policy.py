"""`specpilot policy`: policies, their histories and canaries, through the admin API."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field

from specpilot.controller.cli import text
from specpilot.controller.cli.client import AdminWriter, WriteSettings
from specpilot.controller.cli.text import note, say, show
from specpilot.controller.cli.words import parsed
from specpilot.controller.recording.explanation import canary_lines
from specpilot.policy.clean_text import fault_of
from specpilot.policy.clock import utc
from specpilot.policy.codec import decode
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.settings import fail
from specpilot.policy.text_files import read_text

PROGRAM = "specpilot policy"
_USAGE = """usage: specpilot policy COMMAND [--admin-url URL] [--token TOKEN] ...

  list                      every policy
  get MODEL                 one policy
  put FILE [--version N]    write the policy in FILE (- for standard input); with --version only over that version;
                            the output of `get` only over the version in it
  edit MODEL                change it in $EDITOR; shows the effect and asks before it writes
  delete MODEL [--version N]
  history MODEL             its versions, with author, time and comment
  diff MODEL VERSION [VERSION]
                            the difference of two versions; without the second: to the present one
  rollback MODEL VERSION [--version N]
                            write an older version again, as a new version
  canary start FILE         try the policy in FILE: {"policy": {"model": ..., ...}, "share_ratio": 0.5, ...};
                            with --version only if the present policy is at that version
  canary show MODEL         the running or latest canary of a model
  canary promote MODEL [--experiment ID]
                            end it now, and make its policy the model's; with --experiment only if it has this
                            experiment_id (`canary show` prints it)
  canary abort MODEL [--experiment ID]
                            end it now, and keep the present policy

  echo '{"model": "demo", "k_max": 5}' | specpilot policy put - --dry-run

  --dry-run                 with every command that writes: show the effect, and write nothing
  --comment TEXT            with every command that writes: its purpose; goes into the history and the audit
"""


class PolicySettings(WriteSettings):
    """Lists, reads, writes, deletes and tries policies through the admin API."""

    version: Annotated[
        int | None, Field(description="write only if the policy is at this version; default: the present one", ge=0)
    ] = None
    experiment: Annotated[
        str | None, Field(description="with canary promote and abort: only if it has this experiment_id")
    ] = None
    yes: Annotated[bool, Field(description="with edit: write without asking")] = False


def main(arguments: Sequence[str]) -> None:
    """Run one command; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    command, names, settings = parsed(arguments, PROGRAM, _USAGE, PolicySettings)
    _Commands(settings).do(command, names)


class _Commands:
    """The commands, over one admin API."""

    def __init__(self, settings: PolicySettings) -> None:
        self._settings = settings
        self._client = AdminWriter(settings, PROGRAM)

    def do(self, command: str, names: Sequence[str]) -> None:
        """Run `command` with `names`."""
        if command == "list":
            self._list()
        elif command == "get":
            show(self._client.ask(_path(names[0])))
        elif command == "put":
            document, version = _policy_in(names[0])
            path = _path(document["model"])
            engines = self._client.ask("/admin/engines")["engines"]
            warning = partial(_warning, document, engines)
            show(self._client.write("PUT", path, document, self._condition(path, version), warning=warning))
        elif command == "edit":
            self._edit(names[0])
        elif command == "delete":
            self._client.write("DELETE", _path(names[0]), condition=self._condition(_path(names[0])))
            say(f"deleted the policy of {names[0]}")
        elif command == "history":
            self._history(names[0])
        elif command == "diff":
            self._diff(names[0], *map(_version, names[1:]))
        elif command == "rollback":
            body, path = {"version": _version(names[1])}, _path(names[0])
            show(self._client.write("POST", path + "/rollback", body, self._condition(path)))
        else:
            self._canary(command.removeprefix("canary "), names[0])

    def _condition(self, path: str, version: int | None = None) -> dict[str, str]:
        """Return the headers for a write over the version of --version, else over `version`, else the present one."""
        if self._settings.version is not None:
            version = self._settings.version
        elif version is None:
            present = self._client.find(path)
            version = present["version"] if present else 0
        return _if_match(version) if version else {"If-None-Match": "*"}

    def _list(self) -> None:
        for item in self._client.ask("/admin/policies")["policies"]:
            policy = item["policy"]
            classes = ", ".join(sorted(policy["classes"])) or "default only"
            say(f"{policy['model']}  version {item['version']}  mode {policy['mode']}  classes: {classes}")

    def _edit(self, model: str) -> None:
        present = self._client.find(_path(model))
        document, version = (present["policy"], present["version"]) if present else ({"model": model}, 0)
        file = _draft(document)
        is_kept = True
        try:
            is_kept = self._write_edited(document, version, file)
        finally:
            if is_kept and file.exists() and file.read_bytes() != _lines(document).encode():
                note(f"{PROGRAM} edit: your changes are in {file}")
            else:
                file.unlink(missing_ok=True)

    def _write_edited(self, document: dict[str, Any], version: int, file: Path) -> bool:
        """Open `file` in the editor, and write it after a yes; return whether the file must be kept."""
        edited = _edited(file)
        if edited == document:
            say("nothing changed")
            return False
        model, path = edited["model"], _path(edited["model"])
        condition = self._condition(path, version)
        say(*self._client.effect("PUT", path, edited, condition))
        note(*_warning(edited, self._client.ask("/admin/engines")["engines"]))
        if self._settings.dry_run:
            return False
        if not self._settings.yes and input("write it? [y/N] ").strip().lower() not in {"y", "yes"}:
            say("not written")
            return True
        stored = self._client.write("PUT", path, edited, condition)
        say(f"{model} is at version {stored['version']}")
        return False

    def _history(self, model: str) -> None:
        versions = self._client.ask(_path(model) + "/versions?limit=300")["versions"]
        if not versions:
            self._client.refuse(f"model {model!r} never had a policy")
        for item in versions:
            comment = f"  # {item['comment']}" if item["comment"] else ""
            author = item["author"] or "unknown"
            say(f"{item['version']:>5}  {utc(item['updated_at'])}  {item['cause']:<8}  {author}{comment}")

    def _diff(self, model: str, older: int, newer: int | None = None) -> None:
        if newer is None:
            newer = int(self._client.ask(_path(model))["version"])
        diff = self._client.ask(f"{_path(model)}/diff?from={older}&to={newer}")
        say(f"{model}, version {older} -> {newer}", *text.changes(diff["changes"]))

    def _canary(self, command: str, name: str) -> None:
        if command == "start":
            document = _read(name, "canary start")
            policy = document.get("policy")
            if not isinstance(policy, dict) or not isinstance(policy.get("model"), str):
                named = f'{name} must name the model, as in {{"policy": {{"model": "...", ...}}}}'
                fail(PROGRAM, f"canary start: {named}")
            path = _canary_path(policy["model"])
            show(self._client.write("PUT", path, document, _if_match(self._settings.version or None)))
        elif command == "promote":
            path = "/admin/canary-promotions/" + quote(name)
            show(self._client.write("POST", path, condition=_if_match(self._settings.experiment)))
        elif command == "abort":
            show(self._client.write("DELETE", _canary_path(name), condition=_if_match(self._settings.experiment)))
        else:
            experiment = self._client.ask(_canary_path(name))
            show(experiment)
            note(*canary_lines(experiment["evidence"]))


def _warning(policy: dict[str, Any], engines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is odd about a valid policy beside the engines that run."""
    limits: dict[str, int] = {}
    for engine in engines:
        if engine["model"] == policy["model"] and engine["k_max"]:
            limits[engine["pool"]] = min(engine["k_max"], limits.get(engine["pool"], engine["k_max"]))
    return text.out_of_reach(policy, limits) + text.unless_it_runs(policy["model"], engines)


def _if_match(etag: object) -> dict[str, str]:
    return {} if etag is None else {"If-Match": f'"{etag}"'}


def _canary_path(model: str) -> str:
    return "/admin/canaries/" + quote(model)


def _version(word: str) -> int:
    if not word.isdecimal():
        fail(PROGRAM, f"{word!r} is no version; `specpilot policy history MODEL` lists them")
    return int(word)


def _draft(document: dict[str, Any]) -> Path:
    """Return a new file that holds `document`."""
    handle, name = tempfile.mkstemp(prefix="specpilot-policy-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(_lines(document))
    return Path(name)


def _edited(file: Path) -> dict[str, Any]:
    """Return the policy in `file` after the operator has edited it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the operator's own editor
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        fail(PROGRAM, f"edit: {editor} failed: {error}; set EDITOR to the editor that you want")
    return _policy_in(str(file))[0]


def _policy_in(file: str) -> tuple[dict[str, Any], int | None]:
    """Return the policy in `file` and, when the file is output of `get`, its version."""
    document, version = _read(file, "put"), None
    if isinstance(document.get("policy"), dict):
        version = document.get("version")
        document = document["policy"]
    model = document.get("model")
    if not isinstance(model, str) or fault_of(model) is not None:
        fail(PROGRAM, f'put: {file} must hold an object that names its model, as in {{"model": "...", ...}}')
    return document, version if isinstance(version, int) else None


def _read(file: str, command: str) -> dict[str, Any]:
    try:
        return decode(dict, sys.stdin.read() if file == "-" else read_text(Path(file)))
    except (OSError, UnicodeDecodeError) as error:
        fail(PROGRAM, f"{command}: {file} cannot be read: {error}")
    except InvalidDocumentError as error:
        fail(PROGRAM, *(f"{command}: {file} holds no JSON object: {fault}" for fault in error.faults))


def _path(model: str) -> str:
    return "/admin/policies/" + quote(model)


def _lines(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"

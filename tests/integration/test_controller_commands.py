"""What operators do from the command line, on a real controller with a real Redis."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store
from tests.support.controller_program import TOKEN, Controller
from tests.support.patience import PATIENCE_S
from tests.support.stack import until


def test_a_policy_is_tried_written_compared_and_rolled_back(controller: Controller, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"model": "cli", "k_max": 5}')
    tried = controller.command("policy", "put", str(file), "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert (
        "dry run, nothing was written. It would write version 1 of cli; changes:\n  k_max: none -> 5\n" in tried.stdout
    )
    assert "no engine of this model runs" in tried.stdout
    assert tried.stderr == "no engine of cli runs, nor of another model\n"
    missing = controller.command("policy", "get", "cli")
    assert (missing.returncode, "has no policy" in missing.stderr) == (1, True)
    assert controller.command("policy", "put", str(tmp_path / "nothing")).returncode == 2
    assert controller.command("policy", "put", str(file), "--comment", "first").returncode == 0
    file.write_text('{"model": "cli", "k_max": 3, "classes": {"code": {"pin": 2}}}')
    assert controller.command("policy", "put", str(file)).returncode == 0
    late = controller.command("policy", "put", str(file), "--version", "1")
    assert (late.returncode, "version 2" in late.stderr) == (1, True)
    assert "cli  version 2" in controller.command("policy", "list").stdout
    history = controller.command("policy", "history", "cli").stdout.splitlines()
    assert [line.split()[0] for line in history] == ["2", "1"]
    assert history[1].endswith("put       --admin-token  # first")
    diff = controller.command("policy", "diff", "cli", "1")
    assert "cli, version 1 -> 2\n  classes.code: none -> " in diff.stdout
    assert "  k_max: 5 -> 3\n" in diff.stdout
    assert controller.command("policy", "diff", "cli", "0", "1").stdout == "cli, version 0 -> 1\n  k_max: none -> 5\n"
    assert "write version 3 of cli" in controller.command("policy", "rollback", "cli", "1", "--dry-run").stdout
    assert json.loads(controller.command("policy", "rollback", "cli", "1").stdout)["policy"]["k_max"] == 5
    assert controller.command("policy", "rollback", "cli", "one").returncode == 2
    assert controller.command("policy", "history", "nobody").returncode == 1
    assert "write version 4 of cli" in controller.command("policy", "delete", "cli", "--dry-run").stdout
    assert controller.command("policy", "delete", "cli").stdout == "deleted the policy of cli\n"
    assert controller.command("policy", "delete", "cli").returncode == 1
    assert json.loads(controller.command("policy", "rollback", "cli", "2").stdout)["version"] == 5
    got = controller.command("policy", "get", "cli").stdout.replace('"k_max": 3', '"k_max": 2')
    assert controller.command("policy", "put", "-", text=got).returncode == 0
    assert controller.call("/admin/policies/cli")[1]["policy"]["k_max"] == 2


def test_k_out_of_the_engines_reach_is_told(controller: Controller, tmp_path: Path) -> None:
    store = Store(controller.redis.url, PATIENCE_S)
    for engine_id, pool, k_max in (("one", "p", 7), ("two", "q", 20), ("plain", "p", 0)):
        url = f"http://127.0.0.1:9/{engine_id}"
        store.heartbeat(EngineRecord(engine_id, url, "reach", pool, k_max, 3, 8, "eagle3", "0", "0", 1.0, 1.0, 0), 60.0)
    store.close()
    file = tmp_path / "policy.json"
    file.write_text('{"model": "reach", "static_k": 12, "k_max": 7, "classes": {"code": {"pin": 20}, "chat": {}}}')
    told = "static_k: 12 is more than the engines of pool p can do, so 7 applies there\nclasses.code.pin: 20 is more"
    for also in ("--dry-run",), ():
        put = controller.command("policy", "put", str(file), *also)
        assert (put.returncode, put.stderr.startswith(told), len(put.stderr.splitlines())) == (0, True, 2)
    file.write_text('{"model": "reach", "classes": [], "pin": "deep"}')
    refused = controller.command("policy", "put", str(file))
    assert (refused.returncode, len(refused.stderr.splitlines()), "classes: must be" in refused.stderr) == (1, 1, True)
    assert controller.command("freeze", "reach").stderr == ""
    assert controller.command("freeze", "reach", "--lift").returncode == 0


def test_nobody_forges_a_line_or_moves_the_terminal(controller: Controller) -> None:
    operator = controller.call("/admin/tokens", "POST", {"name": "operator", "role": "operator"})[1]["token"]
    forged = quote("a\n2026-01-01 00:00:00Z  done    \x1b[2Kput_policy demo  by root", safe="")
    assert controller.call(f"/admin/tokens/{forged}", "DELETE", token=None)[0] == 401
    assert controller.call(f"/admin/policies/said?comment={forged}", "PUT", {})[0] == 201
    assert controller.call(f"/admin/freezes/said?comment={forged}", "PUT", token=operator)[0] == 200
    for words, lines in ((("audit", "--limit", "3"), 3), (("policy", "history", "said"), 1), (("freeze", "--list"), 1)):
        told = controller.command(*words).stdout
        assert len(told.splitlines()) == lines
        assert r"a\n2026-01-01 00:00:00Z  done    \x1b[2Kput_policy" in told
        assert "\x1b" not in told
    refused = controller.command("freeze", "said")
    assert (refused.returncode, len(refused.stderr.splitlines()), r"\x1b[2K" in refused.stderr) == (1, 1, True)
    assert controller.call("/admin/freezes/said", "DELETE")[0] == 204


def test_a_policy_is_edited_in_the_operators_editor(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/"k_max": null/"k_max": 4/\' "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    assert controller.call("/admin/policies/edited", "PUT", {"static_k": 1})[0] == 201
    no = controller.command("policy", "edit", "edited", text="n\n")
    assert "k_max: none -> 4" in no.stdout
    assert "not written" in no.stdout
    yes = controller.command("policy", "edit", "edited", "--yes", "--comment", "narrower")
    assert yes.stdout.endswith("edited is at version 2\n"), yes.stderr
    assert controller.command("policy", "edit", "edited", "--yes").stdout == "nothing changed\n"
    monkeypatch.setenv("EDITOR", "rm")
    gone = controller.command("policy", "edit", "edited")
    assert (gone.returncode, len(gone.stderr.splitlines())) == (2, 1), gone.stderr
    monkeypatch.setenv("EDITOR", "false")
    assert "set EDITOR" in controller.command("policy", "edit", "edited").stderr


def test_what_a_second_operator_wrote_is_refused_and_kept(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert controller.call("/admin/policies/shared", "PUT", {"k_max": 5})[0] == 201
    file = tmp_path / "got.json"
    file.write_text(controller.command("policy", "get", "shared").stdout.replace('"k_min": 0', '"k_min": 1'))
    assert controller.call("/admin/policies/shared", "PATCH", {"k_max": 4})[0] == 200
    refused = controller.command("policy", "put", str(file))
    assert refused.returncode == 1
    assert "Since then --admin-token changed k_max from 5 to 4" in refused.stderr
    for words in (("delete", "shared"), ("rollback", "shared", "1")):
        refused = controller.command("policy", *words, "--version", "1")
        assert (refused.returncode, "changed k_max from 5 to 4" in refused.stderr) == (1, True)
    canary = tmp_path / "canary.json"
    canary.write_text(json.dumps({"policy": {"model": "shared", "k_max": 5}}))
    assert "changed k_max" in controller.command("policy", "canary", "start", str(canary), "--version", "1").stderr
    editor = tmp_path / "editor"  # somebody else writes while this operator edits
    other = [sys.executable, "-m", "specpilot.cli", "policy", "put", str(tmp_path / "other.json")]
    (tmp_path / "other.json").write_text('{"model": "shared", "k_max": 3}')
    editor.write_text(
        f'#!/bin/sh\nsed -i \'s/"k_min": 0/"k_min": 2/\' "$1"\n{" ".join(other)} --admin-url {controller.url} '
        f"--token '{TOKEN}' >/dev/null\n"
    )
    editor.chmod(0o700)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    edited = controller.command("policy", "edit", "shared", "--yes")
    assert edited.returncode == 1
    assert "changed k_max from 4 to 3" in edited.stderr
    kept = Path(edited.stderr.split("your changes are in ")[1].strip())
    assert '"k_min": 2' in kept.read_text()
    kept.unlink()
    assert controller.call("/admin/policies/shared")[1]["policy"]["k_min"] == 0


def test_tokens_and_keys_are_made_used_and_revoked(controller: Controller) -> None:
    tried = controller.command("token", "create", "night shift", "--role", "viewer", "--dry-run")
    effect = "dry run, nothing was written. It would change night shift; changes:\n  name: none -> night shift\n"
    assert (tried.returncode, tried.stdout.startswith(effect)) == (0, True), tried.stderr
    assert "night shift" not in controller.command("token", "list").stdout
    made = controller.command("token", "create", "night shift", "--role", "viewer", "--expires-in", "2h")
    assert made.returncode == 0, made.stderr
    token, token_id = made.stdout.strip(), made.stderr.split(":")[0]
    assert controller.call("/admin/policies", token=token)[0] == 200
    assert f"{token_id}  viewer    night shift  expires 20" in controller.command("token", "list").stdout
    rotated = controller.command("token", "rotate", token_id).stdout.strip()
    assert controller.call("/admin/policies", token=token)[0] == 401
    assert controller.call("/admin/policies", token=rotated)[0] == 200
    assert controller.command("token", "revoke", token_id).returncode == 0
    assert controller.command("token", "revoke", token_id).returncode == 1
    assert controller.command("token", "create", "x").returncode == 2
    assert controller.command("token", "create", "x", "--role", "viewer", "--expires-in", "soon").returncode == 2
    key = controller.command(
        "key", "create", "--traffic-class", "code", "--allowed-classes", "code,chat", "--tokens-per-minute", "9000"
    )
    key_id = key.stderr.split(":")[0]
    assert key.stdout.startswith("sk-")
    assert f"{key_id}  traffic_class code, allowed_classes ['code', 'chat'], tokens_per_minute 9000" in (
        controller.command("key", "list").stdout
    )
    changed = json.loads(
        controller.command("key", "change", key_id, "--tokens-per-minute", "none", "--expires-in", "90d").stdout
    )
    assert (changed["tokens_per_minute"], changed["expires_at"] is None) == (None, False)
    assert controller.command("key", "rotate", key_id, "--grace", "1h").stdout != key.stdout
    assert "--tokens-per-minute" in controller.command("key", "change", key_id, "--tokens-per-minute", "many").stderr
    other_id = controller.command("key", "create").stderr.split(":")[0]
    revoked = controller.command("key", "revoke", key_id)
    assert (revoked.returncode, revoked.stderr) == (0, "")
    assert "no key is left: a gateway" in controller.command("key", "revoke", other_id).stderr


def test_a_token_or_key_that_expired_is_rotated_with_a_new_expiry_and_a_comment(controller: Controller) -> None:
    for what, flags in (("token", ("brief", "--role", "viewer")), ("key", ())):
        command = partial(controller.command, what)
        made = command("create", *flags, "--expires-in", "0.2s", "--comment", "for a moment").stderr.split(":")[0]
        time.sleep(0.25)
        late = command("rotate", made)
        assert (late.returncode, "expires_in_s: is missing, and it has expired" in late.stderr) == (1, True)
        assert command("rotate", made, "--expires-in", "90d", "--comment", "on duty again").returncode == 0
        assert command("rotate", made, "--expires-in", "none").stderr.startswith(f"{made}: does not expire")
        assert command("revoke", made, "--comment", "left").returncode == 0
        entries = controller.call("/admin/audit?limit=5")[1]["entries"]
        told = [(item["action"], item["comment"]) for item in entries]
        assert told == [
            (f"{'revoke' if what == 'token' else 'delete'}_{what}", "left"),
            (f"rotate_{what}", ""),
            (f"rotate_{what}", "on duty again"),
            (f"rotate_{what}", ""),
            (f"add_{what}", "for a moment"),
        ]


def test_what_a_key_may_from_the_command_line(controller: Controller) -> None:
    key = partial(controller.command, "key")
    flags = ("--allowed-models", "big, small", "--max-concurrent-requests", "4", "--k-max", "0")
    key_id = key("create", *flags).stderr.split(":")[0]
    assert f"{key_id}  allowed_models ['big', 'small'], max_concurrent_requests 4, k_max 0" in key("list").stdout
    changed = json.loads(key("change", key_id, "--k-max", "none").stdout)
    assert (changed["k_max"], changed["allowed_models"]) == (None, ["big", "small"])
    refused = key("change", key_id, "--k-max", "65")
    assert (refused.returncode, "k_max: must be at most 64" in refused.stderr) == (1, True)
    for flags in (("--k-max", "many"), ("--requests-per-minute", "1.5"), ("--tokens-per-minute", "-1")):
        refused = key("change", key_id, *flags)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert refused.stderr.startswith(f"specpilot key change: {flags[0]}: ")
    assert key("revoke", key_id).returncode == 0


def test_models_are_routed_from_the_command_line(controller: Controller) -> None:
    command = partial(controller.command, "models")
    assert command("list").stdout == "no name has a route\n"
    split = ("set", "chat", "big=9", "new", "--fallback", "small,tiny")
    tried = command(*split, "--dry-run").stdout
    assert "dry run, nothing was written. It would write version 1 of model-routes; changes:" in tried
    line = "chat  served by big 90 %, new 10 %; else small, tiny\n"
    done = command(*split)
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
    assert command("set", "fast", "small").stdout == "fast  served by small\n"
    assert command("set", "big", "--fallback", "small").stdout == "big  served by big; else small\n"
    assert command("list").stdout == "big  served by big; else small\n" + line + "fast  served by small\n"
    assert command("set", "chat", "big").stdout == "chat  served by big\n"
    assert command("remove", "chat", "--comment", "over").stdout == "removed the route of chat\n"
    for words, said in (("remove", "has no route"), ("set", "routes.chat: names no model")):
        refused = command(words, "chat")
        assert (refused.returncode, said in refused.stderr) == (1, True)
    for words in (
        ["set"],
        ["remove"],
        ["set", "chat", "big=many"],
        ["set", "chat", "big=0"],
        ["set", "chat", "big=inf"],
        ["move"],
    ):
        assert command(*words).returncode == 2
    assert "specpilot models: set: 'big=many': 'many' is no weight" in command("set", "chat", "big=many").stderr


def test_a_freeze_from_the_command_line(controller: Controller) -> None:
    begun = controller.command("freeze", "demo", "--hold", "static", "--for", "2h", "--comment", "launch")
    assert begun.stdout.startswith("demo is frozen: the static K, until 20"), begun.stderr
    assert "no engine of demo runs" in begun.stderr
    assert controller.command("freeze", "--all").stdout.startswith(
        "everything is frozen: K as it was when the freeze began"
    )
    listed = controller.command("freeze", "--list").stdout
    assert "everything: K as it was when the freeze began, until it is lifted, by --admin-token" in listed
    assert "demo: the static K" in listed
    assert listed.rstrip().endswith("# launch")
    assert controller.command("freeze", "--all", "--lift").returncode == 0
    assert controller.command("freeze", "demo", "--lift").stdout == "demo is not frozen any more\n"
    assert controller.command("freeze", "--list").stdout == "nothing is frozen\n"
    assert controller.command("freeze", "demo", "--dry-run").stdout.startswith("dry run")
    assert controller.command("freeze", "demo").returncode == 0
    made = controller.command("token", "create", "other", "--role", "operator").stdout.strip()
    assert controller.call("/admin/freezes/demo", "PUT", {}, made)[0] == 409
    assert controller.call("/admin/freezes/demo", "PUT", {"replace": True}, made)[0] == 200
    refused = controller.command("freeze", "demo", "--for", "1m")
    assert (refused.returncode, "is frozen by other until it is lifted" in refused.stderr) == (1, True)
    assert controller.command("freeze", "demo", "--for", "1m", "--replace").returncode == 0
    assert controller.command("freeze").returncode == 2
    assert controller.command("freeze", "demo", "--for", "long").returncode == 2


def test_without_the_right_token_a_command_names_the_flag_and_the_variable(controller: Controller) -> None:
    command = [sys.executable, "-m", "specpilot.cli", "freeze", "--list", "--admin-url", controller.url]
    for given in ((), ("--token", "amiss")):
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "give it with --token or SPECPILOT_ADMIN_TOKEN" in done.stderr
        assert "amiss" not in done.stderr


def test_the_audit_is_shown_and_followed(controller: Controller, tmp_path: Path) -> None:
    assert controller.call("/admin/policies/watched", "PUT", {"k_max": 5})[0] == 201
    shown = controller.command("audit", "--limit", "1").stdout
    assert "done    put_policy watched  by --admin-token (admin) from 127.0.0.1  [k_max None -> 5]" in shown.replace(
        "none ->", "None ->"
    )
    assert json.loads(controller.command("audit", "--limit", "1", "--json").stdout)["subject"] == "watched"
    out = tmp_path / "out"
    with out.open("w") as file:
        follower = subprocess.Popen(
            [sys.executable, "-m", "specpilot.cli", "audit", "--follow", "--limit", "1", "--admin-url", controller.url],
            stdout=file,
            env={**os.environ, "SPECPILOT_ADMIN_TOKEN": TOKEN},
        )
    try:
        until(lambda: "watched" in out.read_text())
        assert controller.call("/admin/policies/watched", "PATCH", {"k_max": 500})[0] == 422
        until(lambda: "refused patch_policy watched" in out.read_text())
    finally:
        follower.terminate()
        follower.wait(PATIENCE_S)

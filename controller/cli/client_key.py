"""`specpilot key`: the clients' keys to the engines, and their limits."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.controller.cli.credentials import expiry, expiry_body, seconds, secret
from specpilot.controller.cli.words import parsed
from specpilot.policy.settings import fail, load

PROGRAM = "specpilot key"
_USAGE = """usage: specpilot key COMMAND [--admin-url URL] [--token TOKEN] ...

  list                  every client key
  create                a new one, shown once
  change ID             change its limits
  rotate ID             a new key under the same id; --grace 1h: the old one stays valid for that long
  revoke ID

  --traffic-class code  --allowed-classes code,chat  --requests-per-minute 60  --tokens-per-minute 9000
  --allowed-models big,small  --max-concurrent-requests 4  --k-max 3 (0: no speculation)
  --expires-in 90d      with create, change and rotate; `none` removes any of these limits
  --comment TEXT        with every command that writes: its purpose; goes into the audit
"""


_LISTS = ("allowed_classes", "allowed_models")
_NUMBERS = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests", "k_max")
_MAY = ("traffic_class", *_LISTS, *_NUMBERS)


class KeySettings(AdminSettings):
    """Makes, lists, changes, rotates and revokes client keys."""

    traffic_class: Annotated[str | None, Field(description="class of its requests without a stated class")] = None
    allowed_classes: Annotated[str | None, Field(description="classes that a request may name, by commas")] = None
    requests_per_minute: Annotated[str | None, Field(description="limit over all gateways")] = None
    tokens_per_minute: Annotated[str | None, Field(description="limit over all gateways")] = None
    allowed_models: Annotated[str | None, Field(description="models that a request may name, by commas")] = None
    max_concurrent_requests: Annotated[str | None, Field(description="requests in flight at once")] = None
    k_max: Annotated[str | None, Field(description="ceiling on K of its requests; 0: no speculation")] = None
    expires_in: Annotated[str | None, Field(description="how long it is valid: 12h, 90d")] = None
    comment: Annotated[str, Field(description="the purpose; goes into the audit")] = ""
    grace: Annotated[str | None, Field(description="how long the old key stays valid after a rotation: 1h")] = None


def main(arguments: Sequence[str] | None = None) -> None:
    """`specpilot key`; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    commands = {"list": "", "create": "", "change": "id", "rotate": "id", "revoke": "id"}
    command, names, rest = parsed(arguments, commands, PROGRAM, _USAGE)
    name = "".join(names)
    settings = load(KeySettings, f"{PROGRAM} {command}", rest)
    client, place = AdminClient(settings, PROGRAM), "/admin/keys/" + quote(name, safe="")
    if command == "list":
        keys = client.read("/admin/keys")["keys"]
        if not keys:
            sys.stderr.write(
                "no client key: a gateway that starts now serves without one; one that has seen a key rejects all\n"
            )
        for item in keys:
            may = ", ".join(f"{field} {item[field]}" for field in _MAY if item[field] is not None) or "no limits"
            sys.stdout.write(f"{item['key_id']}  {may}  {expiry(item)}\n")
    elif command == "create":
        secret(client.write("POST", "/admin/keys", _key_body(settings), settings.comment), "key")
        sys.stderr.write(f"{PROGRAM}: from now on gateways reject requests without a key\n")
    elif command == "change":
        changed = client.write("PATCH", place, _key_body(settings), settings.comment)
        sys.stdout.write(json.dumps(changed, indent=2) + "\n")
    elif command == "rotate":
        rotation = expiry_body(PROGRAM, settings.expires_in)
        if settings.grace is not None:
            rotation["grace_s"] = seconds(PROGRAM, "--grace", settings.grace)
        secret(client.write("POST", f"{place}/rotate", rotation, settings.comment), "key")
    else:
        client.write("DELETE", place, None, settings.comment)
        sys.stdout.write(f"revoked {name}\n")
        if not client.ask("/admin/keys")["keys"]:
            sys.stderr.write(
                f"{PROGRAM}: no key is left: a gateway that has seen one rejects all requests until it is restarted\n"
            )


def _key_body(settings: KeySettings) -> dict[str, Any]:
    body: dict[str, Any] = {}
    reads: dict[str, Callable[[str], Any]] = {
        "traffic_class": str,
        **dict.fromkeys(_LISTS, lambda text: [item.strip() for item in text.split(",")]),
        **dict.fromkeys(_NUMBERS, int),
    }
    for field, read in reads.items():
        value = getattr(settings, field)
        if field in _NUMBERS and value not in (None, "none") and not value.isdecimal():
            fail(PROGRAM, f"--{field.replace('_', '-')}: {value!r} is no whole number; give one, or none")
        if value is not None:
            body[field] = None if value == "none" else read(value)
    return body | expiry_body(PROGRAM, settings.expires_in)

"""`specpilot key`: the clients' keys to the engines, and their limits."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field

from specpilot.controller.cli.client import AdminWriter, WriteSettings
from specpilot.controller.cli.credentials import Duration, ExpiresIn, expiry, expiry_body, secret
from specpilot.controller.cli.text import duration_s, note, say, show
from specpilot.controller.cli.words import parsed, readable

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
  --dry-run             with every command that writes: show the effect, and write nothing
  --comment TEXT        with every command that writes: its purpose; goes into the audit
"""


def _number(limit: str) -> int | None:
    if limit != "none" and not limit.isdecimal():
        raise ValueError(f"{limit!r} is no whole number; give one, or none")
    return None if limit == "none" else int(limit)


_Number = Annotated[str, readable(_number)]


class KeySettings(WriteSettings):
    """Makes, lists, changes, rotates and revokes client keys."""

    traffic_class: Annotated[str | None, Field(description="class of its requests without a stated class")] = None
    allowed_classes: Annotated[str | None, Field(description="classes that a request may name, by commas")] = None
    requests_per_minute: Annotated[_Number | None, Field(description="limit over all gateways")] = None
    tokens_per_minute: Annotated[_Number | None, Field(description="limit over all gateways")] = None
    allowed_models: Annotated[str | None, Field(description="models that a request may name, by commas")] = None
    max_concurrent_requests: Annotated[_Number | None, Field(description="requests in flight at once")] = None
    k_max: Annotated[_Number | None, Field(description="ceiling on K of its requests; 0: no speculation")] = None
    expires_in: Annotated[ExpiresIn | None, Field(description="how long it is valid: 12h, 90d")] = None
    grace: Annotated[Duration | None, Field(description="how long the old key stays valid after a rotation: 1h")] = None


def main(arguments: Sequence[str]) -> None:
    """`specpilot key`; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    command, names, settings = parsed(arguments, PROGRAM, _USAGE, KeySettings)
    name, client = "".join(names), AdminWriter(settings, PROGRAM)
    place = "/admin/keys/" + quote(name, safe="")
    if command == "list":
        keys = client.ask("/admin/keys")["keys"]
        if not keys:
            note("no client key: a gateway that starts now serves without one; one that has seen a key rejects all")
        for item in keys:
            may = ", ".join(f"{field} {item[field]}" for field in _READS if item[field] is not None) or "no limits"
            say(f"{item['key_id']}  {may}  {expiry(item)}")
    elif command == "create":
        secret(client.write("POST", "/admin/keys", _key_body(settings)), "key")
        note(f"{PROGRAM}: from now on gateways reject requests without a key")
    elif command == "change":
        show(client.write("PATCH", place, _key_body(settings)))
    elif command == "rotate":
        rotation = expiry_body(settings.expires_in)
        if settings.grace is not None:
            rotation["grace_s"] = duration_s(settings.grace)
        secret(client.write("POST", f"{place}/rotate", rotation), "key")
    else:
        client.write("DELETE", place)
        say(f"revoked {name}")
        if not client.ask("/admin/keys")["keys"]:
            note(f"{PROGRAM}: no key is left: a gateway that has seen one rejects all requests until it is restarted")


def _names(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


_READS: Mapping[str, Callable[[str], Any]] = {
    "traffic_class": str,
    "allowed_classes": _names,
    "allowed_models": _names,
    "requests_per_minute": _number,
    "tokens_per_minute": _number,
    "max_concurrent_requests": _number,
    "k_max": _number,
}
"""How the flag of each field of a key is read."""


def _key_body(settings: KeySettings) -> dict[str, Any]:
    stated = {field: getattr(settings, field) for field in _READS}
    fields = {
        field: None if text == "none" else _READS[field](text) for field, text in stated.items() if text is not None
    }
    return fields | expiry_body(settings.expires_in)

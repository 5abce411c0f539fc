"""`specpilot token`: the named tokens of the admin API."""

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import Field

from specpilot.controller.cli.client import AdminWriter, WriteSettings
from specpilot.controller.cli.credentials import ExpiresIn, expiry, expiry_body, secret
from specpilot.controller.cli.text import note, say
from specpilot.controller.cli.words import parsed
from specpilot.policy.settings import fail

PROGRAM = "specpilot token"
_USAGE = """usage: specpilot token COMMAND [--admin-url URL] [--token TOKEN] ...

  list                                          every named token of the admin API
  create NAME --role ROLE [--expires-in 90d]    a new one (viewer, operator or admin), shown once
  rotate ID [--expires-in 90d]                  a new secret; the old one is rejected at once
  revoke ID

  --dry-run                 with every command that writes: show the effect, and write nothing
  --comment TEXT            with every command that writes: its purpose; goes into the audit
  --expires-in none         it does not expire
"""


class TokenSettings(WriteSettings):
    """Makes, lists, rotates and revokes the admin API's named tokens."""

    role: Annotated[Literal["viewer", "operator", "admin"] | None, Field(description="the token's role")] = None
    expires_in: Annotated[ExpiresIn | None, Field(description="how long it is valid: 12h, 90d; default: for ever")] = (
        None
    )


def main(arguments: Sequence[str]) -> None:
    """`specpilot token`; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    command, names, settings = parsed(arguments, PROGRAM, _USAGE, TokenSettings)
    name, client = "".join(names), AdminWriter(settings, PROGRAM)
    body, place = expiry_body(settings.expires_in), "/admin/tokens/" + quote(name, safe="")
    if command == "list":
        tokens = client.ask("/admin/tokens")["tokens"]
        if not tokens:
            note("no named token yet")
        for item in tokens:
            say(f"{item['token_id']}  {item['role']:<8}  {item['name']}  {expiry(item)}")
    elif command == "create":
        if settings.role is None:
            fail(PROGRAM, "create: --role: name viewer, operator or admin")
        secret(client.write("POST", "/admin/tokens", {"name": name, "role": settings.role, **body}), "token")
    elif command == "rotate":
        secret(client.write("POST", f"{place}/rotate", body), "token")
    else:
        client.write("DELETE", place)
        say(f"revoked {name}")

"""`specpilot audit`: prints the audit; with --follow also new entries as they come."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.controller.cli import text
from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.policy.settings import load

PROGRAM = "specpilot audit"
POLL_S = 1.0
_PAGE = 500


class AuditSettings(AdminSettings):
    """Shows the audit: every write, rejected ones included, and the controller's own actions."""

    model_config = SettingsConfigDict(populate_by_name=False)

    limit: Annotated[int, Field(description="number of the latest entries", ge=1, le=1000)] = 50
    follow: Annotated[bool, Field(description="go on with new entries, until Ctrl-C")] = False
    as_json: Annotated[bool, Field(description="print one JSON object per entry", alias="json")] = False


def main(arguments: Sequence[str]) -> None:
    """Print entries, oldest first; status 1 when the controller rejects it, 2 when the arguments are wrong."""
    settings = load(AuditSettings, PROGRAM, arguments)
    client = AdminClient(settings, PROGRAM)
    with suppress(KeyboardInterrupt):
        latest = client.ask(f"/admin/audit?limit={settings.limit}")["entries"]
        if not latest:
            text.note("the audit has no entry yet")
        last = _print(reversed(latest), settings, 0)
        while settings.follow:
            time.sleep(POLL_S)
            last = _print(client.ask(f"/admin/audit?limit={_PAGE}&after={last}")["entries"], settings, last)


def _print(entries: Any, settings: AuditSettings, last: int) -> int:
    """Print `entries`, oldest first; return the last one's number."""
    for entry in entries:
        text.say(json.dumps(entry) if settings.as_json else text.audit_line(entry))
        last = int(entry["number"])
    sys.stdout.flush()
    return last

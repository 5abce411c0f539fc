"""`specpilot explain`: which K is or was in force, why, and from which evidence."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from controller.admin_client import AdminClient, AdminSettings
from controller.narrate import text
from policy.settings import fail, load

PROGRAM = "specpilot explain"


class ExplainSettings(AdminSettings):
    """Says which K is in force for one model and pool, why, and from which evidence."""

    model_config = SettingsConfigDict(populate_by_name=False)  # or `--as-json` would be a flag besides

    model: Annotated[str | None, Field(description="model; may be left out when there is only one")] = None
    pool: Annotated[str, Field(description="pool of engines")] = "default"
    at: Annotated[str | None, Field(description="moment: Unix seconds or 2026-01-31T12:00:00Z; default: now")] = None
    as_json: Annotated[bool, Field(description="print everything as JSON", alias="json")] = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the explanation; status 1 when there is none, 2 when the arguments are wrong."""
    settings = load(ExplainSettings, PROGRAM, sys.argv[1:] if arguments is None else arguments)
    query = {"pool": settings.pool}
    if settings.at is not None:
        query["at"] = repr(_moment(settings.at))
    client = AdminClient(settings, PROGRAM)
    query["model"] = settings.model or _only_model(client)
    found, _ = client.ask("/admin/explain?" + urlencode(query))
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if settings.as_json else text(found))


def _moment(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        fail(PROGRAM, f"--at: {given!r} is no moment; give Unix seconds or a time like 2026-01-31T12:00:00Z")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _only_model(client: AdminClient) -> str:
    answer, _ = client.ask("/admin/schedules")
    models = sorted({item["model"] for item in answer["schedules"]})
    if len(models) != 1:
        client.refuse(f"--model: name one of: {', '.join(models) or 'none has a schedule yet'}")
    return str(models[0])


if __name__ == "__main__":
    main()

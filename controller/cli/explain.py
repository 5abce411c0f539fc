"""`specpilot explain`: the K that is or was in force, the reason, and the evidence.

Without a moment it also asks engines what they run now, why, and what they predict.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.controller.cli.text import engine_lines, printable
from specpilot.controller.recording.explanation import text
from specpilot.policy.settings import fail, load

PROGRAM = "specpilot explain"


class ExplainSettings(AdminSettings):
    """Prints the K in force for one model and pool, the reason, and the evidence."""

    model_config = SettingsConfigDict(populate_by_name=False)  # else `--as-json` would be a flag too

    model: Annotated[str | None, Field(description="model; may be left out when there is only one")] = None
    pool: Annotated[str | None, Field(description="pool; may be left out when the model has only one")] = None
    at: Annotated[str | None, Field(description="moment: Unix seconds or 2026-01-31T12:00:00Z; default: now")] = None
    as_json: Annotated[bool, Field(description="print everything as JSON", alias="json")] = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the explanation; status 1 when there is none, 2 when the arguments are wrong."""
    settings = load(ExplainSettings, PROGRAM, sys.argv[1:] if arguments is None else arguments)
    moment = {} if settings.at is None else {"at": repr(_moment(settings.at))}
    client = AdminClient(settings, PROGRAM)
    model, pool = settings.model, settings.pool
    if model is None or pool is None:
        model, pool = only_one(client, model, pool)
    query = {"model": model, "pool": pool, **moment}
    explanation, _ = client.ask("/admin/explain?" + urlencode(query))
    answers = client.ask("/admin/ask?" + urlencode(query))[0] if settings.at is None else None
    if settings.as_json:
        sys.stdout.write(json.dumps({**explanation, "engines": answers}, indent=2) + "\n")
        return
    sys.stdout.write(text(printable(explanation)))
    if answers is not None:
        sys.stdout.write("".join(f"{line}\n" for line in _engine_lines(printable(answers))))


def _engine_lines(answers: Mapping[str, Any]) -> list[str]:
    """Return the answers of engines: the pool's numbers, then of the first engine why each group has its K."""
    groups = next((answer["groups"] for answer in answers["answers"] if answer["groups"]), ())
    return engine_lines(answers, "the law's choice") + [
        f"  {group['decodes']} decodes of {', '.join(group['classes'])}, band {group['band']}: "
        f"K {group['k']}: {group['why']}"
        for group in groups
    ]


def _moment(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        fail(PROGRAM, f"--at: {value!r} is no moment; give Unix seconds or a time like 2026-01-31T12:00:00Z")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def only_one(client: AdminClient, model: str | None, pool: str | None) -> tuple[str, str]:
    """Return the only model and pool of running engines that match the given ones (`None`: any)."""
    answer, _ = client.ask("/admin/engines")
    pairs = sorted(
        {
            (item["model"], item["pool"])
            for item in answer["engines"]
            if model in (None, item["model"]) and pool in (None, item["pool"])
        }
    )
    if not pairs:
        client.refuse("no engine of such a model and pool runs; name both --model and --pool to look back")
    models, pools = sorted({item[0] for item in pairs}), sorted({item[1] for item in pairs})
    if len(models) > 1:
        client.refuse(f"--model: name one of: {', '.join(models)}")
    if len(pools) > 1:
        client.refuse(f"--pool: name one of: {', '.join(pools)}")
    return pairs[0]


if __name__ == "__main__":
    main()

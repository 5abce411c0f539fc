"""`specpilot explain`: the K that is or was in force, the reason, and the evidence.

Without a moment it also asks engines what they run now, why, and what they predict.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.controller.cli.text import engine_lines, say, show
from specpilot.controller.cli.words import readable
from specpilot.controller.recording.explanation import lines
from specpilot.policy.settings import load

PROGRAM = "specpilot explain"
_LATEST = 1e11
"""The admin API's bound on a moment: it detects times given in milliseconds."""


def _moment(value: str) -> float:
    try:
        if re.fullmatch(r"\d+(\.\d+)?", value):
            at = float(value)
        else:
            moment = datetime.fromisoformat(value)
            at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        at = 0.0
    if not 0 < at < _LATEST:
        raise ValueError(f"{value!r} is no moment; give Unix seconds or a time like 2026-01-31T12:00:00Z")
    return at


_Moment = Annotated[str, readable(_moment)]


class ExplainSettings(AdminSettings):
    """Prints the K in force for one model and pool, the reason, and the evidence."""

    model_config = SettingsConfigDict(populate_by_name=False)  # else `--as-json` would be a flag too

    model: Annotated[str | None, Field(description="model; may be left out when there is only one")] = None
    pool: Annotated[str | None, Field(description="pool; may be left out when the model has only one")] = None
    at: Annotated[_Moment | None, Field(description="moment: Unix seconds or 2026-01-31T12:00:00Z; default: now")] = (
        None
    )
    as_json: Annotated[bool, Field(description="print everything as JSON", alias="json")] = False


def main(arguments: Sequence[str]) -> None:
    """Print the explanation; status 1 when there is none, 2 when the arguments are wrong."""
    settings = load(ExplainSettings, PROGRAM, arguments)
    moment = {} if settings.at is None else {"at": repr(_moment(settings.at))}
    client = AdminClient(settings, PROGRAM)
    model, pool = settings.model, settings.pool
    if model is None or pool is None:
        model, pool = only_one(client, model, pool)
    query = {"model": model, "pool": pool, **moment}
    explanation = client.ask("/admin/explain?" + urlencode(query))
    answers = client.ask("/admin/ask?" + urlencode(query)) if settings.at is None else None
    if settings.as_json:
        show({**explanation, "engines": answers})
        return
    say(*lines(explanation))
    if answers is not None:
        is_held = explanation["override"] is not None and explanation["override"]["k"] is None
        say(*_engine_lines(answers, is_held=is_held))


def _engine_lines(answers: Mapping[str, Any], *, is_held: bool) -> list[str]:
    """Return the answers of engines: the pool's numbers, then of the first engine why each group has its K.

    `is_held`: a freeze holds K of each group as it was; otherwise, where K is fixed, groups have the law's choice.
    """
    none: Mapping[str, Any] = {"groups": (), "cause": None}
    answer = next((answer for answer in answers["answers"] if answer["groups"]), none)
    groups, lines = answer["groups"], engine_lines(answers, "the law's choice")
    if answer["cause"] is not None and not is_held:
        lines.append(f"K is fixed ({answer['cause']}); the law would choose:")
    return lines + [
        f"  {group['decodes']} decodes of {', '.join(group['classes'])}, band {group['band']}: "
        f"K {group['k']}: {group['why']}"
        for group in groups
    ]


def only_one(client: AdminClient, model: str | None, pool: str | None) -> tuple[str, str]:
    """Return the only model and pool of running engines that match the given ones (`None`: any)."""
    answer = client.ask("/admin/engines")
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

"""The report: a line for each check, and the tables of step times, in Markdown and in JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.bench.gpu_check.check import FAILED, MEASURED, PASSED, SKIPPED
from specpilot.bench.gpu_check.step_tables import step_tables
from specpilot.bench.report.markdown import table

VERDICTS = (PASSED, FAILED, MEASURED, SKIPPED)


def write(out: Path, documents: Sequence[Mapping[str, Any]], remaining: Sequence[str], within_s: float) -> None:
    """Write `report.md` and `report.json` of the parts' `documents`.

    `remaining` are the parts that did not run, because they might not have fitted the `within_s` seconds of a call.
    """
    (out / "report.json").write_text(
        json.dumps({"parts": list(documents), "left": list(remaining), "within_s": within_s}, indent=1),
        encoding="utf-8",
    )
    (out / "report.md").write_text(markdown(documents, remaining, within_s), encoding="utf-8")


def markdown(documents: Sequence[Mapping[str, Any]], remaining: Sequence[str], within_s: float) -> str:
    """Return the report as a page."""
    lines = [line for document in documents for line in document["lines"]]
    counts = ", ".join(
        f"{number} {verdict}" for verdict in VERDICTS if (number := sum(line["verdict"] == verdict for line in lines))
    )
    seconds = sum(document["seconds"] for document in documents)
    page = ["# The engine adapter on this machine", "", f"{counts}; {seconds / 60:.1f} minutes."]
    if remaining:
        limit = f"They may not have fitted the {within_s:g} s of one call (`--within-s`)"
        page += ["", f"Not run yet: {'; '.join(remaining)}. {limit}; the same command goes on with them."]
    rows = [
        (
            document["part"],
            line["name"],
            f"**{FAILED}**" if line["verdict"] == FAILED else line["verdict"],
            line["text"].replace("|", "\\|").replace("\n", " "),
        )
        for document in documents
        for line in document["lines"]
    ]
    page += ["", *table(("part", "what", "verdict", "found"), rows)]
    page += step_tables({document["part"]: document["data"] for document in documents})
    return "\n".join(page) + "\n"

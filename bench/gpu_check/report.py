"""The report: a line for each thing that was checked, and the tables of step times, in Markdown and in JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.bench.gpu_check.line import FAILED, MEASURED, PASSED, SKIPPED

VERDICTS = (PASSED, FAILED, MEASURED, SKIPPED)
_STEPS = "steps, "
_PLAIN = ", without speculation"


def write(out: Path, documents: Sequence[Mapping[str, Any]], left: Sequence[str], within_s: float) -> None:
    """Write `report.md` and `report.json` of the parts' `documents`.

    `left` are parts that have not run, as they might not have fitted the `within_s` seconds of a call.
    """
    (out / "report.json").write_text(
        json.dumps({"parts": list(documents), "left": list(left), "within_s": within_s}, indent=1), encoding="utf-8"
    )
    (out / "report.md").write_text(markdown(documents, left, within_s), encoding="utf-8")


def markdown(documents: Sequence[Mapping[str, Any]], left: Sequence[str], within_s: float) -> str:
    """Return the report as a page."""
    lines = [line for document in documents for line in document["lines"]]
    counts = ", ".join(
        f"{number} {verdict}" for verdict in VERDICTS if (number := sum(line["verdict"] == verdict for line in lines))
    )
    seconds = sum(document["seconds"] for document in documents)
    page = ["# The engine adapter on this machine", "", f"{counts}; {seconds / 60:.1f} minutes."]
    if left:
        limit = f"They may not have fitted the {within_s:g} s of one call (`--within-s`)"
        page += ["", f"Not run yet: {'; '.join(left)}. {limit}; the same command goes on with them."]
    page += ["", "| part | what | verdict | found |", "|---|---|---|---|"]
    for document in documents:
        for line in document["lines"]:
            verdict = f"**{FAILED}**" if line["verdict"] == FAILED else line["verdict"]
            page.append(f"| {document['part']} | {line['name']} | {verdict} | {_cell(line['text'])} |")
    page += _step_tables({document["part"]: document["data"] for document in documents})
    return "\n".join(page) + "\n"


def _step_tables(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    page: list[str] = []
    for part, found in data.items():
        if not part.startswith(_STEPS) or part.endswith(_PLAIN) or not found:
            continue
        plain = {cell["running"]: cell for cell in data.get(part + _PLAIN, {}).get("cells", [])}
        page += ["", f"## Milliseconds a step: {part.removeprefix(_STEPS)}", ""]
        page += ["In brackets: tokens per second over those of the engine without speculation.", ""]
        ks = sorted({cell["k"] for cell in found["cells"]})
        page += [
            "| running | without speculation | " + " | ".join(f"K = {k}" for k in ks) + " |",
            "|---" * (2 + len(ks)) + "|",
        ]
        cells = {(cell["running"], cell["k"]): cell for cell in found["cells"]}
        for running in sorted({cell["running"] for cell in found["cells"]}):
            without = plain.get(running, {})
            row = [_number(without.get("step_ms")), *(_beside(cells.get((running, k), {}), without) for k in ks)]
            page.append(f"| {running} | " + " | ".join(row) + " |")
        if found.get("start_graphs"):
            page += ["", "| FULL graphs of K | graphs | seconds | MiB |", "|---|---|---|---|"]
            page += [
                f"| {item['k']} | {item['graphs']} | {item['seconds']:.1f} | {item['mib']:.0f} |"
                for item in found["start_graphs"]
            ]
    return page


def _beside(cell: Mapping[str, Any], without: Mapping[str, Any]) -> str:
    text = _number(cell.get("step_ms"))
    if cell.get("tokens_per_s") and without.get("tokens_per_s"):
        text += f" ({cell['tokens_per_s'] / without['tokens_per_s']:.2f})"
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

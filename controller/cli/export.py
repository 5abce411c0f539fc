"""`specpilot export`: the schedule in force as a table for an engine without the adapter.

Such an engine has neither classes nor bands, so the schedule's rows are averaged: at each load the mean of the rows' K,
weighted by each row's share of the running decodes in the latest decision. Without such shares it is the mean of the
rows of `default`. Classes with rows by band are assumed to have the pool's mix of bands. The table does not follow
later changes of the schedule. If the engines choose K by guidance, the rows are the controller's estimate of their
choice, from its latest decision.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import Field

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.policy.bands import row_of, row_parts, serving_rows
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import KRange, k_at
from specpilot.policy.settings import load

PROGRAM = "specpilot export"
Row = Sequence[Sequence[int]]
"""Ranges `[lo, hi, K]` over running decodes, as in a schedule's JSON."""


class Format(StrEnum):
    """The engine that reads the table."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Drafter(StrEnum):
    """The drafter of the engine that reads the table."""

    P_EAGLE = "p-eagle"
    EAGLE3 = "eagle3"
    EAGLE = "eagle"
    MTP = "mtp"
    DRAFT_MODEL = "draft-model"
    NGRAM = "ngram"


class ExportSettings(AdminSettings):
    """Prints the schedule in force for engines without the adapter."""

    model: Annotated[str, Field(description="model")]
    pool: Annotated[str | None, Field(description="pool; may be left out when the model has only one")] = None
    format: Annotated[Format, Field(description="vllm: num_speculative_tokens_per_batch_size; sglang: adaptive config")]
    drafter: Annotated[Drafter, Field(description="the drafter of the engine that uses it")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as JSON, and on standard error the parts that it leaves out; status 1 when it is rejected."""
    settings = load(ExportSettings, PROGRAM, sys.argv[1:] if arguments is None else arguments)
    refusal = refusal_of(settings.format, settings.drafter)
    client = AdminClient(settings, PROGRAM)
    if refusal is not None:
        client.refuse(refusal)
    schedule = _schedule(client, settings.model, settings.pool)
    decision = _latest_decision(client, settings.model, schedule["pool"])
    classes, notes = schedule["classes"], []
    if schedule["guidance"] is not None and decision.get("schedule"):
        classes = decision["schedule"]["classes"]
        notes.append("the engines choose K themselves; the table is the controller's estimate of their choice")
    row, origin = one_row(classes, row_shares(classes, decision.get("evidence", {})))
    notes.append(origin)
    if settings.format is Format.VLLM:
        table: Mapping[str, Any] = vllm_table(row)
        notes.append("add it to --speculative-config, with your method and model")
        if table["num_speculative_tokens"] == 0:
            client.refuse("the schedule has K = 0 at every load: start the engine without speculation")
    else:
        table = sglang_table(row)
        if not table["candidate_steps"]:
            client.refuse("the schedule has K = 0 at every load: start the engine without speculation")
        notes += sglang_notes(row)
    sys.stdout.write(json.dumps(table) + "\n")
    sys.stderr.writelines(f"{PROGRAM}: {note}\n" for note in notes)


def refusal_of(form: Format, drafter: Drafter) -> str | None:
    """Return the reason for which such an engine cannot use a table, with the remedy; `None` if it can."""
    remedy = "run it with specpilot engine, or keep one static K"
    if form is Format.VLLM and drafter is Drafter.P_EAGLE:
        return (
            "--drafter: vLLM's P-EAGLE drafter lays out slots for K_max but reshapes them by the table's K, so the "
            f"engine dies or takes drafts for other requests'; {remedy}"
        )
    if form is Format.SGLANG and drafter not in (Drafter.EAGLE, Drafter.EAGLE3):
        return f"--drafter: SGLang adapts the steps of eagle and eagle3 only, with top-k 1, not of {drafter}; {remedy}"
    return None


def one_row(classes: Mapping[str, Row], shares: Mapping[str, float]) -> tuple[list[KRange], str]:
    """Return one row for all traffic, and a line that explains it.

    `shares` are the rows' shares of the running decodes; rows without a share count as absent.
    """
    known = {name: shares[name] for name in classes if shares.get(name, 0.0) > 0}
    if not known:
        known = {name: 1.0 for name in serving_rows(classes) if row_parts(name)[0] == DEFAULT_CLASS}
        rows = f"the row {DEFAULT_CLASS!r} alone" if len(known) == 1 else f"the mean of the rows of {DEFAULT_CLASS!r}"
        note = f"no traffic is known: {rows}"
    else:
        parts = ", ".join(f"{name} {share:.0%}" for name, share in sorted(known.items()))
        note = f"the mean of the rows by their share of running decodes: {parts}"
    total = sum(known.values())
    bounds = sorted({hi for name in known for _, hi, _ in classes[name]})
    row: list[KRange] = []
    lo = 1
    for hi in bounds:
        mean = sum(share * k_at(classes[name], lo) for name, share in known.items()) / total
        k = int(mean + 0.5)
        if row and row[-1].k == k:
            row[-1] = KRange(row[-1].lo, hi, k)
        else:
            row.append(KRange(lo, hi, k))
        lo = hi + 1
    return row, note


def row_shares(rows: Mapping[str, Row], evidence: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of the running decodes (0..1) of each of `rows`, from a decision's evidence.

    The evidence has shares by class and by band; a row for a band of a class gets their product.
    """
    shares: dict[str, float] = {}
    names, serving = {name: name for name in rows}, serving_rows(rows)
    bands = _shares(evidence.get("bands"))
    for name, share in _shares(evidence.get("classes")).items():
        if not bands and name in serving:
            shares[name] = share
        for band, part in bands.items():
            row = row_of(names, name, int(band))
            shares[row] = shares.get(row, 0.0) + share * part
    return shares


def vllm_table(row: Sequence[KRange]) -> dict[str, Any]:
    """Return the fields of vLLM's speculative configuration that state `row`."""
    return {
        "num_speculative_tokens": max(k for _, _, k in row),
        "num_speculative_tokens_per_batch_size": [list(item) for item in row],
    }


def sglang_table(row: Sequence[KRange]) -> dict[str, Any]:
    """Return SGLang's adaptive configuration that states `row`: one K from each batch size on.

    Versions that know no batch sizes read `candidate_steps` alone, which has every K above 0.
    """
    steps = sorted({k for _, _, k in row if k > 0})
    return {"candidate_steps": steps, **{str(lo): {"candidate_steps": [k]} for lo, _, k in row}}


def sglang_notes(row: Sequence[KRange]) -> list[str]:
    """Return the other flags that SGLang needs, and what older versions leave out."""
    first = next(k for _, _, k in row if k > 0)
    deepest = max(k for _, _, k in row)
    flags = f"--speculative-eagle-topk 1 --speculative-num-steps {first} --speculative-num-draft-tokens {deepest + 1}"
    return [
        f"save it as a file and start SGLang with --speculative-adaptive --speculative-adaptive-config FILE {flags}",
        "an SGLang that knows no batch sizes in this file chooses among its steps by acceptance, without K = 0",
    ]


def _schedule(client: AdminClient, model: str, pool: str | None) -> dict[str, Any]:
    schedules: list[dict[str, Any]] = [
        item
        for item in client.read("/admin/schedules")["schedules"]
        if item["model"] == model and pool in (None, item["pool"])
    ]
    if not schedules:
        client.refuse(f"--model: there is no schedule for {model}; `specpilot explain` says why")
    if len(schedules) > 1:
        client.refuse(f"--pool: {model} has {', '.join(sorted(item['pool'] for item in schedules))}; name one")
    return schedules[0]


def _latest_decision(client: AdminClient, model: str, pool: str) -> Mapping[str, Any]:
    """Return the latest decision; empty when there is none."""
    answer = client.read(f"/admin/decisions?{urlencode({'model': model, 'pool': pool, 'limit': 1})}")
    decision: Mapping[str, Any] = answer["decisions"][0] if answer["decisions"] else {}
    return decision


def _shares(entries: Mapping[str, Mapping[str, Any]] | None) -> dict[str, float]:
    return {name: item["share"] for name, item in (entries or {}).items() if item.get("share")}


if __name__ == "__main__":
    main()

"""`specpilot export`: K by number of running decodes as a table for an engine without the adapter.

Engines of the pool are asked what they would choose at each load for requests like those that they run. An engine
without the adapter has neither classes nor bands, so the table has the mean over all requests. It does not follow later
changes of the traffic.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import Field

from specpilot.controller.cli.client import AdminClient, AdminSettings
from specpilot.controller.cli.explain import only_one
from specpilot.controller.cli.text import note, say
from specpilot.policy.questions import ALL_CLASSES, Kind
from specpilot.policy.schedule import KRange
from specpilot.policy.settings import load

PROGRAM = "specpilot export"

Format = Literal["vllm", "sglang"]
Drafter = Literal["p-eagle", "eagle3", "eagle", "mtp", "draft-model", "ngram"]


class ExportSettings(AdminSettings):
    """Prints K by number of running requests for engines without the adapter."""

    model: Annotated[str, Field(description="model")]
    pool: Annotated[str | None, Field(description="pool; may be left out when the model has only one")] = None
    format: Annotated[Format, Field(description="vllm: num_speculative_tokens_per_batch_size; sglang: adaptive config")]
    drafter: Annotated[Drafter, Field(description="the drafter of the engine that uses it")]


def main(arguments: Sequence[str]) -> None:
    """Print the table as JSON, and on standard error the parts that it leaves out; status 1 when it is rejected."""
    settings = load(ExportSettings, PROGRAM, arguments)
    refusal = refusal_of(settings.format, settings.drafter)
    client = AdminClient(settings, PROGRAM)
    if refusal is not None:
        client.refuse(refusal)
    model, pool = only_one(client, settings.model, settings.pool)
    reply = client.ask(f"/admin/ask?{urlencode({'model': model, 'pool': pool, 'kind': Kind.K_BY_LOAD.value})}")
    row = [KRange(*item) for item in reply["k_by_load"].get(ALL_CLASSES, ())]
    if not row:
        client.refuse("; ".join([reply["unknown"], *(f"{name}: {why}" for name, why in reply["silent"].items())]))
    notes = [f"what {len(reply['answers'])} of {reply['engines']} engines would choose for their present traffic"]
    if settings.format == "vllm":
        table: Mapping[str, Any] = vllm_table(row)
        notes.append("add it to --speculative-config, with your method and model")
        if table["num_speculative_tokens"] == 0:
            client.refuse("the engines choose K = 0 at every load: start the engine without speculation")
    else:
        table = sglang_table(row)
        if not table["candidate_steps"]:
            client.refuse("the engines choose K = 0 at every load: start the engine without speculation")
        notes += sglang_notes(row)
    say(json.dumps(table))
    note(*(f"{PROGRAM}: {line}" for line in notes))


def refusal_of(form: Format, drafter: Drafter) -> str | None:
    """Return the reason for which such an engine cannot use a table, with the remedy; `None` if it can."""
    remedy = "run it with specpilot engine, or keep one static K"
    if form == "vllm" and drafter == "p-eagle":
        return (
            "--drafter: vLLM's P-EAGLE drafter lays out slots for K_max but reshapes them by the table's K, so the "
            f"engine dies or takes drafts for other requests'; {remedy}"
        )
    if form == "sglang" and drafter not in ("eagle", "eagle3"):
        return f"--drafter: SGLang adapts the steps of eagle and eagle3 only, with top-k 1, not of {drafter}; {remedy}"
    return None


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

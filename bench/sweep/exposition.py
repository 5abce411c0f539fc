"""Reads the metrics of speculation from the `/metrics` of vLLM and SGLang.

vLLM has counters, so a cell's figure is a difference of two readings. SGLang has no counters of acceptance: it exports
the mean of its last decode steps (`--decode-log-interval`, 40), the bonus token included.
"""

from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families

from specpilot.bench.sweep.spec_decode import SpecDecode

PREFIX = "vllm:spec_decode_"
SGLANG_LENGTH = "sglang:spec_accept_length"


def read(text: str) -> SpecDecode | None:
    """Return the counters in the exposition `text`, summed over engines; `None` when it has none of them."""
    totals = {"num_drafts": 0.0, "num_draft_tokens": 0.0, "num_accepted_tokens": 0.0}
    positions: dict[int, float] = {}
    is_there = False
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix(PREFIX)
        if name == family.name:
            continue
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            if name == "num_accepted_tokens_per_pos":
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0.0) + sample.value
            elif name in totals:
                totals[name] += sample.value
                is_there = True
    if not is_there:
        return None
    return SpecDecode(totals["num_drafts"], totals["num_draft_tokens"], totals["num_accepted_tokens"], positions)


def acceptance_length(text: str) -> float | None:
    """Return SGLang's acceptance length in the exposition `text`, the mean over ranks; `None` without speculation."""
    lengths = [
        sample.value
        for family in text_string_to_metric_families(text)
        if family.name == SGLANG_LENGTH
        for sample in family.samples
        if sample.value > 0  # 0 where nothing was drafted
    ]
    return fmean(lengths) if lengths else None

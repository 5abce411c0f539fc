"""Explains K of each group of a batch: the worth and the cost of its draft positions. Pure."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.batch_choice import BAND, Choice, group_of
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT
from specpilot.engine_adapter.law.step_worth import Group, Worth, worth_of
from specpilot.policy.schedule import Objective


def explained(choice: Choice, counts: Counter[int], between: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Return each of these groups as plain data, with its K and why: the worth and the cost of its draft positions.

    The positions are the last one that it drafts and the next one. Where K was not chosen by these alone, `why` says by
    what else. The list is empty without a group, or if a group has no K yet.
    """
    estimates, requirements = choice.estimates, choice.requirements
    if estimates is None or not counts or not counts.keys() <= choice.k_of.keys():
        return []
    present = sorted(counts)
    groups = [group_of(requirements, estimates, code, counts[code]) for code in present]
    ks = [choice.k_of[code] for code in present]
    worth = worth_of(groups, estimates.lengths, estimates.prices, ks, between)
    return [
        {
            "classes": [name for name, at in requirements.index_of.items() if at == code >> REQUIREMENT_AT],
            "band": code & BAND,
            "unprobed": bool(code & UNPROBED),
            "decodes": counts[code],
            "k": k,
            "why": "; ".join([*(_reason(item, choice, code) for item in positions), *_further(choice, group, k)]),
            "positions": [
                {
                    "position": item.position,
                    "worth_tokens": round(item.tokens, 3),
                    "cost_tokens": round(item.cost_tokens, 3),
                }
                for item in positions
            ],
        }
        for code, group, k, positions in zip(present, groups, ks, worth, strict=True)
    ]


def _reason(worth: Worth, choice: Choice, code: int) -> str:
    assert choice.estimates is not None
    least = choice.estimates.contexts.least_of(code)
    group = f"band {code & BAND}" + (f" with a context from {least:,} tokens on" if least else "")
    return f"position {worth.position} of {group} is worth {worth.tokens:.2f} tokens and costs {worth.cost_tokens:.2f}"


def _further(choice: Choice, group: Group, k: int) -> list[str]:
    """Return by what K was chosen besides the worth and the cost of its positions."""
    if not choice.counts:
        return ["kept by a freeze"]
    assert choice.estimates is not None
    k_max = choice.estimates.lengths.shape[1] - 1
    texts = []
    if k == group.high < k_max or k == group.low > 0:
        texts.append(f"its class allows K from {group.low} to {group.high}")
    if choice.requirements.objective is Objective.LATENCY:
        texts.append("chosen for the least mean time per token")
    if choice.fastest:
        texts.append("chosen for latency goals too")
    if choice.estimates.prices.need_one_k:
        texts.append("all decodes of a step get one K")
    return texts

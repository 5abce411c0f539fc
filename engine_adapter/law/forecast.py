"""Predicts the step of a batch under a choice of K, and the choice itself, from an engine's own estimates. Pure.

It answers questions (`agent.answers`) by estimates that are `Estimates.apart`, and says after each refresh of the law
what the choice means for bounds on latency (`outlook`).
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law.batch_choice import Choice, Estimates, Requirements, chosen, group_of
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.step_worth import keeps_slos, step_of, tokens_of
from specpilot.policy.latency_goal import largest_mean
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.questions import ALL_CLASSES, Prediction
from specpilot.policy.schedule import KRange

_EACH_UP_TO = 8
_STEP = 1.25
"""K by load is computed for each number of decodes up to the first value, then in steps by this factor."""
_KEPT = 1.02
"""A bound counts as kept up to this multiple of it: it has a price, so a choice may exceed it a little."""
_MS = 1000.0


class Decodes(NamedTuple):
    """Decodes alike: their class, the code of their group without its requirement (`law.contexts`), K in force."""

    traffic_class: str
    code: int
    k: int


Batch = Mapping[Decodes, int]


class Outlook(NamedTuple):
    """What a choice means for the classes with a bound on latency.

    `breaks_slo`: whether the static K breaks an SLO that the choice keeps; `None`: no class has one. By class:
    `predicted_s` (`slowest_s`), `mean_predicted_s` (`mean_s`), and those whose bound is `out_of_reach`: only fewer
    requests at once would keep it.
    """

    breaks_slo: bool | None = None
    predicted_s: Mapping[str, float] = {}
    mean_predicted_s: Mapping[str, float] = {}
    out_of_reach: Collection[str] = ()


def outlook(choice: Choice, static_k: int) -> Outlook:
    """Return what a choice means, for its own batch."""
    slowest, mean, of_class = slowest_s(choice), mean_s(choice), choice.requirements.index_of.items()
    beyond = out_of_reach(choice, slowest)
    return Outlook(
        breaks_slo(choice, static_k),
        {name: slowest[index] for name, index in of_class if index in slowest},
        {name: mean[index] for name, index in of_class if index in mean},
        [name for name, index in of_class if index in beyond],
    )


def chosen_k(estimates: Estimates, requirements: Requirements, batch: Batch) -> dict[Decodes, int]:
    """Return K of each group of the batch by the law, with these requirements."""
    choice = chosen(estimates, requirements, _counts(requirements, batch))
    return {group: choice.k_of[_code(requirements, group)] for group in batch}


def fixed_k(k_of: Mapping[str, int], batch: Batch) -> dict[Decodes, int]:
    """Return K of each group of the batch from K by class."""
    return {group: k_of.get(group.traffic_class, k_of[DEFAULT_CLASS]) for group in batch}


def predicted(
    estimates: Estimates, requirements: Requirements, batch: Batch, k_of: Mapping[Decodes, int]
) -> Prediction:
    """Return the prediction for these K of the groups of a batch, weighted by `requirements`."""
    groups = [group_of(requirements, estimates, _code(requirements, each), count) for each, count in batch.items()]
    step = step_of(groups, estimates.lengths, estimates.prices, [k_of[each] for each in batch])
    step_s, itl_s = (seconds * estimates.slowdown for seconds in (step.seconds, step.seconds + step.prompts_s))
    decodes: Counter[str] = Counter()
    drafted: Counter[str] = Counter()
    lengths: dict[str, float] = {}
    for (each, count), length in zip(batch.items(), step.lengths, strict=True):
        name = each.traffic_class
        decodes[name] += count
        drafted[name] += count * k_of[each]
        lengths[name] = lengths.get(name, 0.0) + count * float(length)
    return Prediction(
        k={name: drafted[name] / count for name, count in decodes.items()},
        throughput=float(tokens_of(groups, step) / step_s),
        step_s=float(step_s),
        itl_ms={name: float(_MS * itl_s * count / lengths[name]) for name, count in decodes.items()},
    )


def breaks_slo(choice: Choice, static_k: int) -> bool | None:
    """Return whether the static K breaks an SLO that `choice` keeps, for its own batch; `None`: no class has an SLO."""
    if not choice.requirements.has_bounds:
        return None
    groups = choice.groups
    static = [min(max(static_k, group.low), group.high) for group in groups]
    with_static = choice.step(dict(zip(choice.counts, static, strict=True)))
    return bool(keeps_slos(groups, choice.step(), _KEPT) and not keeps_slos(groups, with_static, _KEPT))


def slowest_s(choice: Choice) -> dict[int, float]:
    """Return the predicted mean inter-token latency of the slowest group of each requirement with a bound, in seconds.

    Where the choice exceeds the bound, and the fastest one would keep the goal, it is the bound: K could keep it. Else
    it is the goal's statistic by the fastest one. Some requests may miss a percentile, so a few that no K makes fast
    enough do not break its bound. Keys are the indices of the requirements; one without decodes has no entry.
    """
    slowest = {index: max(item)[0] for index, item in _latencies(choice).items()}
    at_best = _of_goals(choice, choice.fastest or None)
    return {index: min(seconds, max(at_best[index], _bound_s(choice, index))) for index, seconds in slowest.items()}


def out_of_reach(choice: Choice, slowest: Mapping[int, float]) -> set[int]:
    """Return the requirements with a bound that fewer requests at once would keep, and no K keeps for all of them.

    `slowest` is `slowest_s` of the choice. Half of the requests are beyond the bound if their mean is at it. So K does
    not keep a percentile either where the choice is as fast as any, and more requests than may are expected to miss.

    Of a bound that no K keeps even for a request alone, fewer would keep nothing: such a requirement is not returned.
    """
    present, at_best = _of_goals(choice, None), _of_goals(choice, choice.fastest or None)
    beyond = {
        index
        for index, seconds in slowest.items()
        if seconds > _bound_s(choice, index)
        or (present[index] <= _KEPT * at_best[index] and at_best[index] > _largest_mean_s(choice, index))
    }
    return {index for index in beyond if _is_kept_alone(choice, index)}


def _is_kept_alone(choice: Choice, index: int) -> bool:
    """Whether some K keeps the goal of a requirement for one of its decodes alone, without prompts beside it."""
    assert choice.estimates is not None
    prices = copy(choice.estimates.prices)
    prices.prompts_s = 0.0
    alone = replace(choice.estimates, prices=prices, choosers={})
    codes = [code for code, count in choice.counts.items() if count and code >> REQUIREMENT_AT == index]
    choices = (chosen(alone, choice.requirements, Counter({code: 1})) for code in codes)
    return any(_of_goals(one, one.fastest or None)[index] <= _largest_mean_s(choice, index) for one in choices)


def _bound_s(choice: Choice, index: int) -> float:
    return (choice.requirements.distinct[index].tpot_bound_ms or 0.0) / _MS


def _largest_mean_s(choice: Choice, index: int) -> float:
    """Return the mean latency up to which a requirement's goal is expected to be kept."""
    slo, bound_s = choice.requirements.distinct[index].slo, _bound_s(choice, index)
    ratio = slo.tpot.statistic.ratio if slo is not None and slo.tpot is not None else None
    return bound_s if ratio is None else largest_mean(bound_s, ratio)


def mean_s(choice: Choice) -> dict[int, float]:
    """Return the predicted mean time per token of the requests of each requirement with a bound, in seconds."""
    return {index: _mean(item) for index, item in _latencies(choice).items()}


def _mean(latencies: Sequence[tuple[float, float]]) -> float:
    """Return the mean of latencies by the share of each."""
    return sum(seconds * share for seconds, share in latencies) / sum(share for _, share in latencies)


def _latencies(choice: Choice, k_of: Mapping[int, int] | None = None) -> dict[int, list[tuple[float, float]]]:
    """Return by requirement with a bound the latency of each group with decodes, and its share of the ended requests.

    Under the choice, or under other K. Slow requests run longer, so fewer of them end than run: as many as their tokens
    in a step, if replies are alike.
    """
    if not choice.requirements.has_bounds:
        return {}
    assert choice.estimates is not None
    step = choice.step(k_of)
    of_groups: dict[int, list[tuple[float, float]]] = {}
    for code, group, latency_s, length in zip(choice.counts, choice.groups, step.latencies, step.lengths, strict=True):
        if group.decodes and group.tpot_bound_s:
            item = float(latency_s) * choice.estimates.slowdown, group.decodes * float(length)
            of_groups.setdefault(code >> REQUIREMENT_AT, []).append(item)
    return of_groups


def _of_goals(choice: Choice, k_of: Mapping[int, int] | None) -> dict[int, float]:
    """Return the statistic of each requirement's goal (`_of_goal`) under the choice, or under other K."""
    return {index: _of_goal(choice, index, item) for index, item in _latencies(choice, k_of).items()}


def _of_goal(choice: Choice, index: int, latencies: Sequence[tuple[float, float]]) -> float:
    """Return the statistic of a requirement's goal; the largest latency for a bound without one."""
    slo = choice.requirements.distinct[index].slo
    goal = slo.tpot if slo is not None else None
    if goal is not None and goal.statistic.ratio is None:
        return _mean(latencies)
    whole = sum(share for _, share in latencies)
    slower, most = 0.0, 0.0 if goal is None else (1 - (goal.statistic.ratio or 0.0)) * whole
    for seconds, share in sorted(latencies, reverse=True):
        slower += share
        if slower > most:
            return seconds
    return 0.0


def k_by_load(
    estimates: Estimates, requirements: Requirements, batch: Batch, numbers: Sequence[int]
) -> tuple[dict[str, tuple[KRange, ...]], dict[str, int]]:
    """Return K by number of running decodes for requests like those of `batch`, which must not be empty.

    K is the rounded mean by class, and under `ALL_CLASSES` over all requests. Requests without a verified draft count
    for the band in which they start. Also returned: by class with a bound on latency the largest of `numbers` at which
    it is kept, 0 for none.
    """
    keeps_up_to: dict[str, int] = {}
    shares: Counter[Decodes] = Counter()  # unprobed requests and others together, whatever their present K
    whole: Counter[str] = Counter()
    for group, count in batch.items():
        shares[Decodes(group.traffic_class, group.code & ~UNPROBED, 0)] += count
        whole[group.traffic_class] += count
        whole[ALL_CLASSES] += count
    ks: dict[str, list[int]] = {row: [] for row in whole}
    for number in numbers:
        choice = chosen(estimates, requirements, _counts(requirements, _scaled(shares, number)))
        slowest = slowest_s(choice)
        for name, index in requirements.index_of.items():
            if index in slowest:
                is_kept = slowest[index] <= _bound_s(choice, index)
                keeps_up_to[name] = number if is_kept else keeps_up_to.get(name, 0)
        weighted: Counter[str] = Counter()
        for group, share in shares.items():
            k = choice.k_of[_code(requirements, group)]
            weighted[group.traffic_class] += share * k
            weighted[ALL_CLASSES] += share * k
        for row, count in whole.items():
            ks[row].append(int(weighted[row] / count + 0.5))
    return {row: ranges(numbers, of_row) for row, of_row in ks.items()}, keeps_up_to


def loads(most: int, k_max: int, graphs: Graphs | None) -> list[int]:
    """Return the numbers of running decodes, up to `most`, at which K by load is computed.

    They include each number from which on a step with one K for all exceeds the largest CUDA graph.
    """
    points = list(range(1, min(most, _EACH_UP_TO) + 1))
    while points[-1] < most:
        points.append(min(most, int(points[-1] * _STEP) + 1))
    cliffs: set[int] = set()
    for k in range(k_max + 1) if graphs is not None else ():
        assert graphs is not None
        kinds = (graphs.mixed, graphs.varlen, graphs.uniform.get(1 + k, ()))
        cliffs |= {max(sizes) // (1 + k) + 1 for sizes in kinds if sizes}
        if k and graphs.drafter:
            cliffs.add(max(graphs.drafter) // (2 * k) + 1)
    return sorted({*points, *(number for number in cliffs if number <= most)})


def ranges(numbers: Sequence[int], ks: Sequence[int]) -> tuple[KRange, ...]:
    """Return K as ranges: `ks[i]` from `numbers[i]` to the next number; neighbours with the same K are merged."""
    merged: list[KRange] = []
    ends = [*(following - 1 for following in numbers[1:]), numbers[-1]]
    for low, high, k in zip(numbers, ends, ks, strict=True):
        if merged and merged[-1].k == k:
            merged[-1] = KRange(merged[-1].lo, high, k)
        else:
            merged.append(KRange(low, high, k))
    return tuple(merged)


def _code(requirements: Requirements, group: Decodes) -> int:
    index_of = requirements.index_of
    return index_of.get(group.traffic_class, index_of[DEFAULT_CLASS]) << REQUIREMENT_AT | group.code


def _counts(requirements: Requirements, batch: Batch) -> Counter[int]:
    counts: Counter[int] = Counter()
    for group, count in batch.items():
        counts[_code(requirements, group)] += count
    return counts


def _scaled(shares: Batch, number: int) -> dict[Decodes, int]:
    """Return `number` decodes, distributed by `shares` as whole numbers."""
    whole = sum(shares.values())
    exact = {key: share * number / whole for key, share in shares.items()}
    counts = {key: math.floor(value) for key, value in exact.items()}
    for key in sorted(exact, key=lambda key: counts[key] - exact[key])[: number - sum(counts.values())]:
        counts[key] += 1
    return counts

"""The present load: the mix of classes and bands, the running decodes, prefill and context.

The mix does not depend on K. With given concurrency it is the share of each class and band in the decodes, with given
work the share in the tokens; the law takes the middle (`choice`), w = decodes^(1 - beta) tokens^beta. It is averaged
over time, independent of the interval of the scrapes (`mix_time_s`). A class and band without traffic for `gone_s`
leaves the mix at once. Otherwise its tiny share would pay the drafter's whole fixed cost, its K would fall to 0, and
other rows would draft for too little gain, because the drafter seems to be paid for. If a stream has shrunk by more
than chance explains, its newest share replaces the mean. For n requests and a stream with the mean share
q and the share s in the snapshot,

    n KL(s || q) = n [ s ln(s / q) + (1 - s) ln((1 - s) / (1 - q)) ]

is the log likelihood ratio of s against q. Its sum over snapshots grows while s < q, falls while s > q, and fades like
the mean; at `gone_nats` the stream has shrunk. A stream without requests adds -n ln(1 - q): the probability of that,
(1 - q)^n, is then exp(-`gone_nats`). The streams that have grown get its share. A snapshot of other engines than the
last one is not used for this, because the engines of a pool may differ in their traffic. Running decodes, prefill and
context are those of the newest snapshot.

An unprobed request has the initial band of its kind. When most decodes of a class are unprobed (`cold_ratio`), the
bands of the others do not represent the class. Then the class's share is in the bands of the unprobed requests, and the
rows of its other bands are set as for absent traffic (`Choice.prepared`). When one request turns out predictable, it
gets drafts by its row. The engine then drafts for all others once, so the next snapshot has the bands of all.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.tuning import Tuning

Vector = NDArray[np.float64]
_PRESENT = 1e-3


@dataclass(slots=True)
class Load:
    """The recent load.

    `mix`, and `running` (shares of the decodes), are by (class, band) and sum to 1. `points` are running decodes of
    decode steps, `weights` their shares of the steps. `prefill` has pairs (share of the steps, tokens in a step).
    `context_tokens` is the mean length of a running sequence. `unseen_s` are the seconds of traffic since a (class,
    band) was last seen, `shortfall` the log likelihood ratio of its recent shares in nats.
    """

    mix: dict[tuple[str, int], float] = field(default_factory=dict)
    running: dict[tuple[str, int], float] = field(default_factory=dict)
    points: Vector = field(default_factory=lambda: np.ones(1))
    weights: Vector = field(default_factory=lambda: np.ones(1))
    prefill: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    context_tokens: float = 0.0
    unseen_s: dict[tuple[str, int], float] = field(default_factory=dict)
    shortfall: dict[tuple[str, int], float] = field(default_factory=dict)

    def take(self, evidence: Evidence, elapsed_s: float, tuning: Tuning, *, of_same_engines: bool = True) -> None:
        """Add the evidence of the last `elapsed_s` seconds; `of_same_engines`: of the same engines as the last one."""
        drafts = evidence.drafts_of
        if drafts and evidence.decode_tokens:
            per_engine = sum(drafts.values()) / max(1.0, evidence.steps + evidence.catch_up_steps)
            requests = max(1.0, per_engine, sum(evidence.running.values()))
            keep = math.exp(-elapsed_s / tuning.mix_time_s)
            seen = {key: drafts.get(key, 0.0) / sum(drafts.values()) for key in self.mix}
            # Other engines of the pool may have other traffic, so their snapshot is no evidence of a change.
            counted = requests if of_same_engines else 0.0
            self.shortfall = {
                key: max(
                    0.0, keep * self.shortfall.get(key, 0.0) + counted * _unlikely(share, self.running.get(key, 0.0))
                )
                for key, share in seen.items()
            }
            self.unseen_s = {
                key: 0.0 if share else self.unseen_s.get(key, 0.0) + elapsed_s for key, share in seen.items()
            }
            fewer = {key for key, sum_ in self.shortfall.items() if sum_ >= tuning.gone_nats}
            fewer |= {key for key, unseen_s in self.unseen_s.items() if unseen_s >= tuning.gone_s}
            self.shortfall |= dict.fromkeys(fewer, 0.0)
            self.running = _faded(self.running, drafts, keep, fewer)
            mix, cold = _mix(evidence, tuning)
            few = {key for key in self.mix if key[0] in cold and key not in mix}
            self.mix = _faded(self.mix, mix, keep, fewer | few)
        sums = [item for item in evidence.cells.values() if item.decodes > 0]
        if not sums:
            return
        steps = sum(item.steps for item in sums)
        self.points = np.array([max(1.0, item.decodes / item.steps) for item in sums])
        self.weights = np.array([item.steps for item in sums]) / steps
        prefilling = [item for item in sums if item.prefill > 0]
        with_prefill = sum(item.steps for item in prefilling)
        self.prefill = ((1.0, 0.0),)
        if prefilling:
            tokens = sum(item.prefill for item in prefilling) / with_prefill
            self.prefill = ((1 - with_prefill / steps, 0.0), (with_prefill / steps, tokens))
        # A prefilling request counts in its step's context, but not in its decodes. So steps with prefill are used
        # only if there are no others.
        measured = [item for item in sums if not item.prefill] or sums
        self.context_tokens = sum(item.context for item in measured) / sum(item.decodes for item in measured)

    @property
    def decodes(self) -> float:
        """Mean running decodes of a step that decodes."""
        return float((self.points * self.weights).sum())


def _mix(evidence: Evidence, tuning: Tuning) -> tuple[dict[tuple[str, int], float], set[str]]:
    """Return the mix by (class, band), and the classes with mostly unprobed decodes, whose share is in their bands."""
    decodes, beta, names = evidence.drafts_of, tuning.answer_ratio, set()
    mix = {key: decodes.get(key, tokens) ** (1 - beta) * tokens**beta for key, tokens in evidence.decode_tokens.items()}
    for name in {name for name, _ in evidence.cold}:
        cold = {key: count for key, count in evidence.cold.items() if key[0] == name}
        if sum(cold.values()) > tuning.cold_ratio * sum(count for key, count in decodes.items() if key[0] == name):
            whole = sum(mix.pop(key) for key in list(mix) if key[0] == name)
            mix |= {key: whole * count / sum(cold.values()) for key, count in cold.items()}
            names.add(name)
    return mix, names


def _unlikely(seen: float, share: float) -> float:
    """Return KL(seen || share) of a Bernoulli variable in nats; negative if `seen` is above `share`."""
    share = min(max(share, _PRESENT), 1.0 - _PRESENT)
    found = sum(part * math.log(part / whole) for part, whole in ((seen, share), (1 - seen, 1 - share)) if part > 0)
    return found if seen < share else -found


def _faded(
    before: Mapping[tuple[str, int], float],
    counts: Mapping[tuple[str, int], float],
    keep: float,
    fewer: Collection[tuple[str, int]],
) -> dict[tuple[str, int], float]:
    """Return shares that move from `before` to those of `counts` by 1 - `keep`; those of `fewer` move all the way.

    The shares that `fewer` loses go to streams that have grown. Negligible shares are dropped.
    """
    keep, total = keep if before else 0.0, sum(counts.values())
    seen = {key: counts.get(key, 0.0) / total for key in {*before, *counts}}
    found = {
        key: share if key in fewer else keep * before.get(key, 0.0) + (1 - keep) * share for key, share in seen.items()
    }
    more = {key: seen[key] - share for key, share in found.items() if seen[key] > share}
    left = 1.0 - sum(found.values())
    if left > 0 and more:
        found |= {
            key: found[key] + difference * min(1.0, left / sum(more.values())) for key, difference in more.items()
        }
    whole = sum(share for share in found.values() if share >= _PRESENT)
    return {key: share / whole for key, share in sorted(found.items()) if share >= _PRESENT}

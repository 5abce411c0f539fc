"""How likely each draft token is to be accepted, by traffic class of one model.

A draft that was verified to depth K tells about positions up to K and says nothing about deeper ones; counting
trials and accepts per position and multiplying the conditional acceptances a_i (the product limit of Kaplan and
Meier 1958) is therefore exact however K varies:

    a_i = (accepts_i + w p_i) / (trials_i + w)          the mean of a Beta posterior
    S_i = a_1 ... a_i                                   AL(K) = 1 + S_1 + ... + S_K

`w` is `prior_trials` and p_i the prior mean: for the first position the model's mean over all its classes, after
that the class's own previous acceptance, moved as the model's mean moves from i-1 to i (on the log-odds scale). So
a class with little traffic looks like its model, a class at low K extrapolates its own level with the model's
shape, and where nobody looked the last acceptance holds.

Intervals are 90 %, from Greenwood's variance of ln S_i with `dispersion`; a position without trials of its own
counts as a handful of trials and so has a wide one.

Forgetting is by evidence: old counts lose weight with new trials of the same position, so that rarely probed
positions are remembered longer in time than busy ones, between a floor and a ceiling in seconds. A believed jump
(see `change`) cuts the memory of the class to what came after it. Silence ages nothing.

Unknown is `None`: a model with fewer than `minimum_trials` first-position trials has no estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.change import ChangeDetector
from controller.tuning import Tuning
from policy.types import K_LIMIT

Vector = NDArray[np.float64]
_Z90 = 1.645
_EXTRAPOLATED_TRIALS = 5.0
_FIRST_GUESS = 0.6  # only ever seen through `minimum_trials` real trials


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance of one class. Index 0 is position 1.

    `survival` is S_i with its 90 % interval `low`..`high`; `trials` the remembered weight of evidence by position;
    `observed` the deepest position with trials of the class's own.
    """

    hazards: Vector
    survival: Vector
    low: Vector
    high: Vector
    trials: Vector
    observed: int

    def acceptance_length(self, k: int) -> float:
        """Tokens per step and request at K = `k`, the bonus token included."""
        return 1.0 + float(self.survival[:k].sum())

    def described(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "acceptance": self.hazards.tolist(),
            "survival": self.survival.tolist(),
            "survival_low": self.low.tolist(),
            "survival_high": self.high.tolist(),
            "trials": self.trials.tolist(),
        }


@dataclass(slots=True)
class _ClassMemory:
    trials: Vector
    accepts: Vector
    detector: ChangeDetector


def _logit(probability: float) -> float:
    bounded = min(max(probability, 0.005), 0.995)
    return float(np.log(bounded / (1 - bounded)))


class ModelAcceptance:
    """What is remembered of one model's drafts, all engines and pools together."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._classes: dict[str, _ClassMemory] = {}
        self.jumps: dict[str, int] = {}

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that ever drafted."""
        return tuple(sorted(self._classes))

    def learn(
        self,
        trials: Mapping[tuple[str, int], float],
        accepts: Mapping[tuple[str, int], float],
        elapsed_s: float,
    ) -> None:
        """Take in what was tried and accepted in the last `elapsed_s` seconds, by (class, position)."""
        for name in {key[0] for key in trials}:
            tried = _vector(trials, name)
            accepted = np.minimum(_vector(accepts, name), tried)
            memory = self._classes.get(name)
            if memory is None:
                zero = np.zeros(K_LIMIT)
                memory = _ClassMemory(zero, zero, ChangeDetector(K_LIMIT, self._tuning))
                self._classes[name] = memory
            jump = memory.detector.look(tried, accepted, memory.trials, memory.accepts)
            if jump is not None:
                self.jumps[name] = self.jumps.get(name, 0) + 1
                memory.trials, memory.accepts = jump.trials, jump.accepts
                continue
            keep = np.maximum(
                np.exp(-tried / self._tuning.memory_trials), np.exp(-elapsed_s / self._tuning.memory_floor_s)
            ) * 0.5 ** (elapsed_s / self._tuning.memory_ceiling_s)
            memory.trials = memory.trials * keep + tried
            memory.accepts = memory.accepts * keep + accepted

    def estimate(self, name: str, k_max: int) -> Acceptance | None:
        """Return the acceptance of class `name` to depth `k_max`; `None` when the model is not known yet.

        A class without evidence of its own gets the model's mean.
        """
        pooled_trials = sum((memory.trials for memory in self._classes.values()), np.zeros(K_LIMIT))
        if k_max < 1 or pooled_trials[0] < self._tuning.minimum_trials:
            return None
        pooled_accepts = sum((memory.accepts for memory in self._classes.values()), np.zeros(K_LIMIT))
        memory = self._classes.get(name)
        own_trials = memory.trials if memory else np.zeros(K_LIMIT)
        own_accepts = memory.accepts if memory else np.zeros(K_LIMIT)
        weight = self._tuning.prior_trials
        hazards = np.empty(k_max)
        support = np.empty(k_max)
        mean_before = own_before = _FIRST_GUESS
        for index in range(k_max):
            mean = (pooled_accepts[index] + 5.0 * mean_before) / (pooled_trials[index] + 5.0)
            expected = mean if index == 0 else _moved(own_before, _logit(mean) - _logit(mean_before))
            hazards[index] = (own_accepts[index] + weight * expected) / (own_trials[index] + weight)
            support[index] = _EXTRAPOLATED_TRIALS + own_trials[index]
            mean_before, own_before = mean, float(hazards[index])
        survival: Vector = np.cumprod(hazards).astype(np.float64)
        deviation = np.sqrt(np.cumsum(self._tuning.dispersion * (1 - hazards) / (hazards * support)))
        return Acceptance(
            hazards=hazards,
            survival=survival,
            low=survival * np.exp(-_Z90 * deviation),
            high=np.minimum(1.0, survival * np.exp(_Z90 * deviation)),
            trials=own_trials[:k_max].copy(),
            observed=int(np.count_nonzero(own_trials[:k_max] > 1.0)),
        )


def _vector(counts: Mapping[tuple[str, int], float], name: str) -> Vector:
    vector = np.zeros(K_LIMIT)
    for (owner, position), count in counts.items():
        if owner == name and 1 <= position <= K_LIMIT:
            vector[position - 1] = count
    return vector


def _moved(probability: float, step: float) -> float:
    """Return `probability` moved by `step` on the log-odds scale."""
    return float(1.0 / (1.0 + np.exp(-(_logit(probability) + step))))

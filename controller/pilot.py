"""All that a controller has learned, and the law over it. The same code runs live, in replays and in simulations.

`Pilot.observe` takes in what the engines said; `Pilot.steer` answers for one pool. Nothing here reads a clock, a
socket or a setting: times are arguments (seconds on any steady clock), and the same calls give the same answers.
Acceptance is learned per model from all its pools together, cost per pool.
"""

from collections.abc import Iterable
from dataclasses import replace

from controller.estimate import ModelAcceptance
from controller.facts import Facts, Verdict
from controller.memory import PoolMemory
from controller.observation import Look, Observation, Series, changes, evidence_of
from controller.steer import Steering
from controller.tuning import Tuning

PoolKey = tuple[str, str]


class Pilot:
    """The learned state of every model and pool."""

    def __init__(self, tuning: Tuning | None = None) -> None:
        self._tuning = tuning or Tuning()
        self._models: dict[str, ModelAcceptance] = {}
        self._pools: dict[PoolKey, PoolMemory] = {}
        self._last: dict[str, Observation] = {}

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in one scrape of every engine that answered; repeated and out-of-order ones are ignored."""
        gained: dict[PoolKey, list[dict[Series, float]]] = {}
        history: dict[PoolKey, list[dict[Series, float]]] = {}
        elapsed_s: dict[PoolKey, float] = {}
        latest: dict[PoolKey, float] = {}
        for seen in observations:
            key = (seen.model, seen.pool)
            before = self._last.get(seen.engine_id)
            if before is not None and (before.model, before.pool) != key:
                before = None
            if before is not None and seen.at <= before.at:
                continue
            self._last[seen.engine_id] = seen
            latest[key] = max(latest.get(key, seen.at), seen.at)
            (history if before is None else gained).setdefault(key, []).append(changes(before, seen))
            if before is not None:
                elapsed_s[key] = max(elapsed_s.get(key, 0.0), seen.at - before.at)
        for key, parts in history.items():
            life = evidence_of(parts)
            self._pool(key).cost.learn(life.cells, 0.0, catch_ups=life.catch_ups, is_history=True)
        for key, at in latest.items():
            evidence = evidence_of(gained.get(key, ()))
            self._pool(key).take(evidence, elapsed_s.get(key, 0.0), at)
            self._model(key[0]).learn(evidence.trials, evidence.accepts, elapsed_s.get(key, 0.0))

    def forget_engines(self, alive: Iterable[str]) -> None:
        """Drop the last scrapes of all engines but those that are alive."""
        keep = set(alive)
        self._last = {name: seen for name, seen in self._last.items() if name in keep}

    def steer(self, facts: Facts, now: float) -> Verdict:
        """Decide for one pool at `now`."""
        pool = self._pool((facts.model, facts.pool))
        facts = replace(facts, in_force=pool.begin(facts.arm, facts.heir, facts.in_force))
        return Steering(facts, pool, self._model(facts.model), self._tuning, now).verdict()

    def take_over(self, now: float) -> None:
        """Begin to lead at `now`: keep what was learned, forget what was decided, as another decided till then."""
        for pool in self._pools.values():
            pool.take_over(now)

    def look(self, model: str, pool: str) -> Look | None:
        """Return the newest look at a pool; `None` before the first."""
        memory = self._pool((model, pool))
        return (
            None if memory.seen_at is None else Look(memory.seen_at, memory.elapsed_s, memory.evidence, memory.left_s())
        )

    def _pool(self, key: PoolKey) -> PoolMemory:
        if key not in self._pools:
            self._pools[key] = PoolMemory.new(self._tuning)
        return self._pools[key]

    def _model(self, model: str) -> ModelAcceptance:
        if model not in self._models:
            self._models[model] = ModelAcceptance(self._tuning)
        return self._models[model]

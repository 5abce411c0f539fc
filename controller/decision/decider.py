"""Learns from scrapes and decides for each pool. The same code runs live and in simulations.

`Decider.observe` learns from the engines' metrics; `Decider.decide` decides for one pool. Nothing here reads a
clock, a socket or a setting: times are arguments (`now` in seconds on any steady clock, `at` in Unix seconds), and the
same calls give the same results. Acceptance is estimated per model, over all its pools.
"""

from collections.abc import Iterable

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.pool_memory import PoolMemory
from specpilot.controller.decision.tick import Tick
from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.controller.estimation.observation import Observation, Series, Snapshot, compare, evidence_of
from specpilot.policy.names import PoolKey


class Decider:
    """The learned state of every model and pool; `scrape_s` are the seconds between two scrapes."""

    def __init__(self, scrape_s: float = 0.5) -> None:
        self._scrape_s = scrape_s
        self._models: dict[str, ModelAcceptance] = {}
        self._pools: dict[PoolKey, PoolMemory] = {}
        self._last: dict[str, Observation] = {}

    def observe(self, observations: Iterable[Observation]) -> None:
        """Learn from one scrape of every engine that answered and can speculate; ignore repeated and older scrapes."""
        parts: dict[PoolKey, list[tuple[Snapshot, dict[Series, float]]]] = {}
        for observation in observations:
            key, engine_id = (observation.model, observation.pool), observation.engine_id
            before = self._last.get(engine_id)
            if before is not None and (before.model, before.pool) != key:
                before = None
            if before is not None and observation.at <= before.at:
                continue
            increases, self._last[engine_id] = compare(before, observation)
            elapsed_s = 0.0 if before is None else observation.at - before.at
            snapshot = Snapshot(observation.at, elapsed_s, evidence_of([increases]))
            parts.setdefault(key, []).append((snapshot, increases))
            if before is not None:
                self._pool(key).engines[engine_id] = snapshot
        for key, changes in parts.items():
            evidence = evidence_of(increases for _, increases in changes)
            at = max(snapshot.at for snapshot, _ in changes)
            elapsed_s = max(snapshot.elapsed_s for snapshot, _ in changes)
            self._pool(key).add_snapshot(Snapshot(at, elapsed_s, evidence))
            self._model(key[0]).learn(evidence.trials, evidence.accepts)

    def forget_all_but(self, engines: Iterable[str], pools: Iterable[PoolKey]) -> None:
        """Drop the state of engines, pools and models that are gone."""
        engine_ids, keys = set(engines), set(pools)
        models = {model for model, _ in keys}
        self._last = {name: last for name, last in self._last.items() if name in engine_ids}
        for key, pool in self._pools.items():  # an engine may have been started anew for another pool
            pool.keep_engines({name for name, last in self._last.items() if (last.model, last.pool) == key})
        self._pools = {key: pool for key, pool in self._pools.items() if key in keys}
        self._models = {name: model for name, model in self._models.items() if name in models}

    def decide(self, context: PoolContext, now: float, at: float) -> TickResult:
        """Decide for one pool at `now`; `at` determines the windows of its experiments."""
        pool = self._pool((context.model, context.pool))
        return Tick(context, pool, self._model(context.model), now, at).result()

    def resume(self, model: str, pool: str, digest: str) -> None:
        """Take over a pool that fell back under the last leader; `digest` names the comparison."""
        self._pool((model, pool)).control_group.resume(digest)

    def _pool(self, key: PoolKey) -> PoolMemory:
        if key not in self._pools:
            self._pools[key] = PoolMemory(self._scrape_s)
        return self._pools[key]

    def _model(self, model: str) -> ModelAcceptance:
        if model not in self._models:
            self._models[model] = ModelAcceptance()
        return self._models[model]

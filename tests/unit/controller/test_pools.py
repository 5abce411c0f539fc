from dataclasses import replace

from specpilot.controller.estimation.observation import Observation
from specpilot.controller.pools import of_steerable, pool_contexts
from specpilot.policy.model_policy import Mode
from specpilot.policy.records import EngineRecord

ENGINE = EngineRecord("a", "http://a", "m", "p", 7, 3, 64, "eagle3", "0.32.0", "0.1.0", 0.0, 0.0)


def test_the_smallest_k_max_and_static_k_of_the_engines_that_can_speculate_are_the_pools() -> None:
    other, plain = replace(ENGINE, engine_id="b", k_max=5, static_k=2), replace(ENGINE, engine_id="c", k_max=0)
    (context,) = pool_contexts([ENGINE, other, replace(plain, static_k=0)], {}, [], Mode.ACT)
    assert (context.k_max, context.static_k, context.engines) == (5, 2, ("a", "b"))


def test_engines_that_cannot_speculate_are_no_evidence() -> None:
    able, unable = ENGINE, replace(ENGINE, engine_id="b", k_max=0)
    seen = [Observation(engine.engine_id, "m", "p", 1.0, 0.0, {}) for engine in (able, unable)]
    assert of_steerable(seen, [able, unable]) == seen[:1]

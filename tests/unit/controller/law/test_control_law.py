"""Which engines the law remembers in each pool."""

from specpilot.controller.decision.decider import Decider
from specpilot.controller.estimation.observation import Observation, Series
from specpilot.policy import engine_metrics as names


def seen(engine_id: str, pool: str, at: float) -> Observation:
    return Observation(engine_id, "m", pool, at, 0.0, {Series(names.DRAFTS, ("default", "7", "3")): 8 * at})


def engines_of(law: Decider, pool: str) -> set[str]:
    return set(law._pool(("m", pool)).engines)


def test_an_engine_that_is_gone_or_in_another_pool_leaves_its_pool() -> None:
    law, pools = Decider(), [("m", "a"), ("m", "b")]
    for at in (1.0, 2.0):
        law.observe([seen("one", "a", at), seen("two", "a", at), seen("three", "a", at)])
    assert engines_of(law, "a") == {"one", "two", "three"}
    for at in (3.0, 4.0):
        law.observe([seen("one", "a", at), seen("two", "b", at)])
        law.forget_all_but(["one", "two"], pools)
    assert (engines_of(law, "a"), engines_of(law, "b")) == ({"one"}, {"two"})

"""A thousand engines with sixteen classes: one tick, from the text of their pages to a verdict, within a second."""

import time

import numpy as np

from controller.exposition import parse
from controller.facts import Facts
from controller.observation import LABELS, Observation
from controller.pilot import Pilot
from policy.types import ClassPolicy, KRange, Policy, Schedule
from tests.closed_loop.plant import CHAT, CODE, K_MAX, MODEL, POOL, Engine

ENGINES = 1000
CLASSES = [f"class{index:02d}" for index in range(15)]


def page(engine: Engine) -> str:
    return "\n".join(
        f'{series.metric}{{model_name="{MODEL}",'
        + ",".join(f'{name}="{text}"' for name, text in zip(LABELS[series.metric], series.labels, strict=True))
        + f"}} {value}"
        for series, value in engine.values.items()
    )


def test_a_tick_over_a_thousand_engines_takes_a_second_of_one_core() -> None:
    engine = Engine("engine", np.random.default_rng(0))
    truth = {"default": CHAT, **dict.fromkeys(CLASSES, CODE)}
    for k in range(K_MAX + 1):
        schedule = Schedule(MODEL, POOL, 1, 0.0, 15.0, 0.0, {"default": (KRange(1, 64, k),)})
        engine.run(1.0, dict.fromkeys(truth, 2), truth, schedule, 1.0)
    before = page(engine)
    engine.run(1.0, dict.fromkeys(truth, 2), truth, schedule, 1.0)
    after = page(engine)
    pilot = Pilot()
    pilot.observe(Observation(str(i), MODEL, POOL, 0.0, 0.0, parse(before)) for i in range(ENGINES))
    policy = Policy(model=MODEL, classes=dict.fromkeys(CLASSES, ClassPolicy()))
    began = time.process_time()
    pilot.observe(Observation(str(i), MODEL, POOL, 1.0, 0.0, parse(after)) for i in range(ENGINES))
    verdict = pilot.steer(Facts(MODEL, POOL, policy, K_MAX, 3, 256, None), 1.0)
    assert time.process_time() - began <= 1.0
    assert len(verdict.publish) == 16

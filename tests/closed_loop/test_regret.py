"""Near the oracle, quickly, on traffic that the law has never seen. The truth is known only to the plant."""

import math
from itertools import pairwise

import numpy as np
import pytest

from controller.guard import Reason
from controller.pilot import Pilot
from policy.types import ClassPolicy, Mode, Policy
from tests.closed_loop.plant import (
    CHAT,
    CODE,
    JSON,
    MODEL,
    POOL,
    ROW_S,
    Phase,
    StepTime,
    concave_step_s,
    cpu_step_s,
    gpu_step_s,
    survival_length,
)
from tests.closed_loop.simulation import Run, simulate

# A schedule may stay below the best by the policy's minimum gain for ever, so this bounds the regret from below.
KEEN = Policy(model=MODEL, minimum_gain_ratio=0.015)
WARM_UP = Phase(20, {"code": 8})
SETTLE_S = 5
MEDIAN_SETTLE_S = 4
# The plant's step times scatter by 3 % from second to second, and a depth that was tried for one second is known no
# better than that: single phases end some per cent below their best, all together do not, and one of 25 may miss.
WORST_PHASE = 0.08
TAIL_RATIO = 0.04
PLANTS = [cpu_step_s, gpu_step_s, concave_step_s]
PLANT_NAMES = ["cpu", "gpu", "concave"]


def assert_good(*runs: Run, phases: int, skip: int = 1, regret: float = 0.02, switches: int = 3) -> None:
    settled: list[int] = []
    regrets: list[float] = []
    missed: list[object] = []
    for number, run in enumerate(runs):
        for phase in range(skip, phases):
            ticks = run.of_phase(phase)
            if not ticks[0].best:
                continue
            regrets.append(run.regret(phase))
            settled.append(run.settled_after_s(phase, within=WORST_PHASE))
            found = (regrets[-1], settled[-1], run.switches(phase))
            if any(a > b for a, b in zip(found, (WORST_PHASE, SETTLE_S, switches), strict=True)):
                story = [(tick.at, tick.k, tick.best_k, tick.verdict.reason.value) for tick in ticks]
                missed.append((number, phase, ticks[0].load, found, story))
    assert len(missed) <= TAIL_RATIO * len(settled), missed
    assert np.median(settled) <= MEDIAN_SETTLE_S
    assert np.mean(regrets) <= regret


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
@pytest.mark.parametrize(
    "load", [{"code": 1}, {"code": 8}, {"chat": 8}, {"json": 4}, {"code": 12, "chat": 20}], ids=str
)
def test_a_cold_start_settles(step_s: StepTime, load: dict[str, int]) -> None:
    run = simulate([Phase(30, load)], step_s=step_s, policy=KEEN)
    assert_good(run, phases=1, skip=0, regret=0.04)


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
def test_steps_in_load(step_s: StepTime) -> None:
    loads = [8, 1, 4, 16, 32, 1, 32, 2]
    phases = [WARM_UP, *(Phase(15, {"code": n}) for n in loads)]
    runs = [simulate(phases, step_s=step_s, seed=seed, policy=KEEN) for seed in range(7)]
    assert_good(*runs, phases=len(phases))


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
def test_steps_in_class_mix(step_s: StepTime) -> None:
    mixes = [
        {"chat": 8},
        {"code": 4, "chat": 4},
        {"json": 8},
        {"json": 2, "chat": 6},
        {"code": 1},
        {"code": 2, "json": 2, "chat": 12},
    ]
    phases = [WARM_UP, *(Phase(15, mix) for mix in mixes)]
    runs = [simulate(phases, step_s=step_s, seed=seed, policy=KEEN) for seed in range(9)]
    assert_good(*runs, phases=len(phases))


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
@pytest.mark.parametrize(
    ("before", "after"),
    [(CODE, CHAT), (JSON, CHAT), (CHAT, JSON), (CODE, JSON)],
    ids=["code-chat", "json-chat", "chat-json", "code-json"],
)
def test_a_class_changes_its_nature(step_s: StepTime, before: tuple[float, ...], after: tuple[float, ...]) -> None:
    phases = [Phase(25, {"code": 4}, {"code": before}), Phase(25, {"code": 4}, {"code": after})]
    run = simulate(phases, step_s=step_s, policy=KEEN)
    settled = run.settled_after_s(1)
    # Under K = 0 only probes see the change, and these are few by intent.
    limit = SETTLE_S if any(tick.best_k["code"] for tick in run.of_phase(0)) else 8
    assert settled <= limit
    assert run.regret(1, settle_s=limit) <= 0.03


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
def test_random_traffic(step_s: StepTime) -> None:
    runs = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        phases = [WARM_UP]
        for _ in range(5):
            classes = rng.choice(["code", "chat", "json"], size=rng.integers(1, 4), replace=False)
            phases.append(Phase(22, {str(name): int(2 ** rng.integers(0, 5)) for name in classes}))
        runs.append(simulate(phases, step_s=step_s, seed=seed, policy=KEEN))
    assert_good(*runs, phases=6)


@pytest.mark.parametrize("seed", range(2))
def test_the_default_policy_stays_within_its_minimum_gain(seed: int) -> None:
    phases = [WARM_UP, *(Phase(15, mix) for mix in ({"chat": 8}, {"json": 2, "chat": 6}, {"code": 1}, {"code": 16}))]
    assert_good(simulate(phases, step_s=PLANTS[seed], seed=seed), phases=len(phases), regret=0.03)


@pytest.mark.parametrize("step_s", PLANTS, ids=PLANT_NAMES)
@pytest.mark.parametrize("load", [{"code": 8}, {"chat": 4}], ids=str)
def test_a_settled_system_publishes_rarely(step_s: StepTime, load: dict[str, int]) -> None:
    """What is predicted for loads and classes that are not there moves with every look; versions do not."""
    minutes = 3
    ticks = simulate([Phase(30 + 60 * minutes, load)], step_s=step_s, seed=1).ticks[29:]
    versions = sum(a.verdict.publish != b.verdict.publish for a, b in pairwise(ticks))
    assert versions <= minutes, [tick.verdict.reason.value for tick in ticks]


def test_k_0_where_it_is_best_and_back() -> None:
    run = simulate([WARM_UP, Phase(20, {"chat": 16}), Phase(20, {"chat": 1}), Phase(20, {"chat": 16})])
    assert run.of_phase(1)[-1].k == {"chat": 0}
    assert run.of_phase(2)[-1].k["chat"] >= 2
    assert run.of_phase(3)[-1].k == {"chat": 0}


def test_what_k_0_leaves_to_be_caught_up_is_found_and_predicted() -> None:
    pilot = Pilot()
    run = simulate([WARM_UP, Phase(120, {"chat": 16})], pilot=pilot, reply_tokens=math.inf)
    assert run.ticks[-1].k == {"chat": 0}
    # What catches up for a probe is part of the probe's cost, which has a budget of its own.
    row_s = pilot._pool((MODEL, POOL)).catch_up.row_s
    assert 0.75 * ROW_S <= row_s <= 1.05 * ROW_S
    step_s = [tick.verdict.evidence["step_s"]["predicted"] for tick in run.ticks[-10:]]
    assert np.mean(step_s) == pytest.approx(cpu_step_s(16, 16, 0) + 16 * row_s, rel=0.03)


def test_two_engines_count_together() -> None:
    phases = [WARM_UP, Phase(15, {"chat": 8}), Phase(15, {"json": 8})]
    assert_good(simulate(phases, engines=2), phases=3)


def test_a_noisy_neighbour_changes_nothing() -> None:
    run = simulate([WARM_UP, Phase(20, {"code": 8}, slowdown=1.8), Phase(20, {"code": 8})])
    assert_good(run, phases=3, switches=1)


def test_a_machine_whose_pace_wanders_costs_little() -> None:
    """A shared machine is now a tenth faster, now a tenth slower, for some 15 s; all K alike."""
    mixes: list[dict[str, int]] = [{"chat": 8}, {"json": 8}, {"code": 1}, {"code": 12, "chat": 4}, {"chat": 2}]
    phases = [WARM_UP, *(Phase(20, mix) for mix in mixes)]
    runs = [simulate(phases, seed=seed, policy=KEEN, wander=0.1) for seed in range(12)]
    regrets = [run.regret(phase) for run in runs for phase in range(1, len(phases))]
    switches = [run.switches(phase) for run in runs for phase in range(1, len(phases))]
    assert np.mean(regrets) <= 0.02
    assert np.mean(switches) <= 1.0


def test_no_flapping_at_a_threshold() -> None:
    crossing = [Phase(2, {"chat": n}) for n in [2, 6] * 15]
    run = simulate([WARM_UP, Phase(20, {"chat": 2}), Phase(20, {"chat": 6}), *crossing])
    late = [tick.verdict.wanted["chat"] for tick in run.ticks[-40:]]
    assert sum(a != b for a, b in pairwise(late)) <= 4
    assert np.mean([tick.goodput / tick.best for tick in run.ticks[-40:]]) >= 0.97


def test_weights_favour_a_class() -> None:
    policy = Policy(model=MODEL, classes={"chat": ClassPolicy(weight=10.0), "code": ClassPolicy()})
    load = {"code": 2, "chat": 2}
    plain = simulate([WARM_UP, Phase(20, load)]).ticks[-1].k
    weighted = simulate([WARM_UP, Phase(20, load)], policy=policy).ticks[-1].k

    def chat_itl_s(k: dict[str, int]) -> float:
        verified = sum(count * (1 + k[name]) for name, count in load.items())
        return cpu_step_s(4, verified, max(k.values())) / survival_length(CHAT, k["chat"])

    assert chat_itl_s(weighted) < chat_itl_s(plain)


def test_probes_cost_at_most_a_hundredth() -> None:
    run = simulate([WARM_UP, Phase(20, {"chat": 16})])
    assert 0 < run.ticks[-1].verdict.probe_ratio < 0.02


def test_advise_publishes_the_static_k_and_says_what_it_would_do() -> None:
    run = simulate(
        [Phase(20, {"code": 8}), Phase(20, {"chat": 8})], policy=Policy(model=MODEL, mode=Mode.ADVISE, static_k=3)
    )
    assert all(set(tick.k.values()) == {3} for tick in run.ticks)
    assert Reason.EXPLORE not in run.reasons


def test_off_publishes_the_static_k() -> None:
    run = simulate([Phase(10, {"code": 8})], policy=Policy(model=MODEL, mode=Mode.OFF, static_k=5))
    assert all(tick.k == {"code": 5} for tick in run.ticks[1:])
    assert run.reasons == {Reason.OFF}

"""The H200 plant reproduces the measurements on one."""

import pytest

from tests.simulation.h200_plant import FULL, SLOW_HOST, H200Plant, graphs
from tests.simulation.plant import Work

RUNNING = (1, 8, 32, 64, 128)
DEFAULT = H200Plant()
EVERY_K = H200Plant(graphs(lengths=(1, 2, 4, 6, 8), largest=1024))
MEASURED = {  # milliseconds by engine and K, for RUNNING
    "default": (
        DEFAULT,
        {
            0: (4.85, 4.92, 5.19, 5.60, 6.36),
            1: (12.5, 10.6, 12.3, 17.6, 15.9),
            3: (12.0, 10.9, 12.7, 13.2, 18.0),
            7: (6.2, 6.7, 10.5, 17.2, 49.2),
        },
    ),
    "every K": (
        EVERY_K,
        {
            1: (6.1, 6.6, 10.3, 12.3, 11.0),
            3: (6.1, 8.3, 11.7, 13.3, 17.9),
            5: (6.2, 8.5, 11.1, 13.7, 25.5),
            7: (6.2, 8.8, 10.9, 17.4, 32.3),
        },
    ),
}
ON_A_SLOW_HOST = {(1, 32), (1, 64), (3, 8), (3, 32), (3, 64), (5, 8), (5, 32), (5, 64), (7, 8)}
"""Cells of `EVERY_K` that were measured while the host was slow."""


def step_ms(plant: H200Plant, n: int, k: int, *, slow: bool = False) -> float:
    work = Work(n, n * (1 + k), n * k)
    return 1000 * max(plant.device_s(work), plant.host_s(work) * (SLOW_HOST if slow else 1.0))


def test_steps_take_as_long_as_they_did_on_the_gpu() -> None:
    errors = [
        abs(step_ms(plant, n, k, slow=plant is EVERY_K and (k, n) in ON_A_SLOW_HOST) / measured - 1)
        for plant, rows in MEASURED.values()
        for k, row in rows.items()
        for n, measured in zip(RUNNING, row, strict=True)
    ]
    assert sum(error <= 0.19 for error in errors) >= 39
    assert sum(error <= 0.13 for error in errors) >= 35


def test_a_mixed_step_and_a_prompt_lose_the_graph_unless_one_serves_every_mix() -> None:
    uniform, mixed = Work(8, 32, 24), Work(8, 32, 24, is_uniform=False)
    prompt = Work(8, 8, prefill=24, prompts=1, read=23)
    for plant, is_lost in ((EVERY_K, True), (H200Plant(graphs(FULL)), False)):
        assert (plant.host_s(mixed) > plant.host_s(uniform) + 4e-3) is is_lost
        assert (plant.host_s(prompt) > 10e-3) is is_lost


@pytest.mark.parametrize("n", [1, 32, 128])
def test_k_0_is_bound_by_the_gpu_and_one_draft_token_by_the_host(n: int) -> None:
    plain, drafting = Work(n, n), Work(n, 2 * n, n)
    assert EVERY_K.device_s(plain) > EVERY_K.host_s(plain)
    assert DEFAULT.device_s(drafting) < DEFAULT.host_s(drafting)

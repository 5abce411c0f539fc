"""A freeze is on every engine within two seconds of the call; a dry run forecasts from live estimates."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from specpilot.policy.schedule import Cause, Override
from tests.simulation.engine import MODEL, POOL
from tests.support.controller_engine import HttpEngine, living_engines, own_k
from tests.support.controller_program import Controller, running_controller
from tests.support.patience import PATIENCE_S
from tests.support.stack import until

WITHIN_S = 20.0
"""Ten times what is promised: a tick of the controller and a beat of each engine, on a machine that others use too."""


@pytest.fixture
def engines(controller: Controller) -> Iterator[list[HttpEngine]]:
    """Two engines with traffic."""
    with living_engines(controller.redis.url, "one", "two") as (_, found):
        yield found


@pytest.fixture
def controller() -> Iterator[Controller]:
    with running_controller() as made:
        yield made


def mean_k(engine: HttpEngine) -> float:
    with urlopen(f"{engine.url}/metrics", timeout=PATIENCE_S) as page:
        return own_k(page.read().decode())


def chooses_deep(engine: HttpEngine) -> bool:
    """Whether the engine chooses K itself, and deeper than the static K."""
    return bool(engine.applied) and engine.applied[-1].override is None and mean_k(engine) > 1


def runs_static(engine: HttpEngine) -> bool:
    """Whether the engine follows a schedule that holds the static K, and all of its decodes have it."""
    return engine.applied[-1].override == Override(1, Cause.FROZEN) and mean_k(engine) == 1


def test_a_freeze_holds_on_every_engine_within_two_seconds_and_a_forecast_is_there(
    controller: Controller, engines: list[HttpEngine]
) -> None:
    path = f"/admin/policies/{MODEL}"
    assert controller.call(path, "PUT", {"static_k": 1})[0] == 201
    until(lambda: len(engines) == 2 and all(chooses_deep(engine) for engine in engines))
    assert controller.call(f"/admin/freezes/{MODEL}", "PUT", {"hold": "static"})[0] == 200
    until(lambda: all(runs_static(engine) for engine in engines), WITHIN_S, every=0.02)
    found = controller.call(f"/admin/explain?model={MODEL}&pool={POOL}")[1]
    assert (found["reason"], found["mode"]) == ("frozen", "act")
    assert "an operator froze the model" in controller.command("explain", "--model", MODEL, "--pool", POOL).stdout
    assert controller.call(f"/admin/freezes/{MODEL}", "DELETE")[0] == 204
    until(lambda: all(chooses_deep(engine) for engine in engines))
    until(lambda: len(_forecast(controller)["answers"]) == 2)
    said = _forecast(controller)
    assert (said["pool"], said["unknown"], said["silent"]) == (POOL, "", {})
    assert set(said["chosen"]["k"].values()) == {0}
    assert said["gain_ratio"] < 0
    tried = {"policy": {"mode": "advise", "static_k": 2}}  # takes part in a canary as its static K
    status, answer, _ = controller.call(f"/admin/canaries/{MODEL}?validate_only=true", "PUT", tried)
    assert (status, set(answer["forecast"][0]["chosen"]["k"].values())) == (200, {2})
    printed = controller.command("policy", "rollback", MODEL, "1", "--dry-run").stdout
    assert f"pool {POOL}:\n  2 of 2 engines say:\n" in printed
    assert "tokens/s and engine" in printed
    explained = controller.command("explain", "--model", MODEL, "--pool", POOL).stdout
    assert "2 of 2 engines say:" in explained
    assert re.search(r"decodes of default, band \d: K \d: position", explained)
    table = controller.command("export", "--model", MODEL, "--pool", POOL, "--format", "vllm", "--drafter", "eagle3")
    assert json.loads(table.stdout)["num_speculative_tokens_per_batch_size"][0][0] == 1
    assert "what 2 of 2 engines would choose for their present traffic" in table.stderr


def _forecast(controller: Controller) -> dict[str, Any]:
    body = {"static_k": 1, "k_max": 0}
    status, said, _ = controller.call(f"/admin/policies/{MODEL}?validate_only=true", "PATCH", body)
    assert status == 200
    [pool] = said["forecast"]
    return dict(pool)

"""K of the endpoints of a sweep: set where that may be done, watched, and given back."""

from asyncio import to_thread
from typing import Any

import pytest

from specpilot.bench.sweep.steering import EndpointError, RefusedError, Steering
from specpilot.engine_adapter.agent.endpoint import SpeculationEndpoint
from tests.support.scripted_engine import reply
from tests.support.sweep_endpoint import Endpoint, sweep

TOKEN = "a-token-of-the-engine"


async def test_a_k_that_a_controller_replaced_is_said_with_the_remedy_and_stays(endpoint: Endpoint) -> None:
    steering = Steering(endpoint.url)
    await to_thread(steering.set_k, 3)
    await to_thread(steering.check, 3)
    endpoint.apply({"guidance": {"override": {"k": 2}}})
    with pytest.raises(EndpointError, match=r"no longer has the K = 3 .* Stop the controller"):
        await to_thread(steering.check, 3)
    await to_thread(steering.give_back)
    assert endpoint.ks == [3]


async def test_a_goal_is_set_without_a_k_and_taken_back(endpoint: Endpoint) -> None:
    steering = Steering(endpoint.url)
    await to_thread(steering.set_k, None, 20.0)
    assert endpoint.schedule is not None
    assert endpoint.schedule["guidance"] == {"classes": {"default": {"tpot_bound_ms": 20.0}}}
    await to_thread(steering.check, None, 20.0)
    endpoint.apply({"guidance": {}})
    with pytest.raises(EndpointError, match="no longer has the goal of 20 ms of this arm"):
        await to_thread(steering.check, None, 20.0)


async def test_an_engine_that_was_restarted_has_not_the_k_that_was_set(endpoint: Endpoint) -> None:
    steering = Steering(endpoint.url)
    await to_thread(steering.set_k, 3)
    endpoint.schedule, endpoint.version = None, 0
    with pytest.raises(EndpointError, match="it was restarted meanwhile"):
        await to_thread(steering.check, 3)


async def test_an_endpoint_gets_its_k_back_once_and_for_an_arm_without_one(endpoint: Endpoint) -> None:
    before = {"probe_ratio": 0.1, "classes": {"default": {"k_max": 6}}}
    steering = Steering(endpoint.url)
    await to_thread(steering.set_k, None)
    assert endpoint.ks == []
    await to_thread(steering.set_k, 3)
    await to_thread(steering.set_k, None)
    await to_thread(steering.check, None)
    await to_thread(steering.give_back)
    assert endpoint.ks == [3, None]
    assert endpoint.schedule is not None
    assert endpoint.schedule["guidance"] == {}  # its law chooses K, as before
    endpoint.apply({"guidance": before})
    await to_thread(steering.set_k, 7)
    await to_thread(steering.give_back)
    assert endpoint.schedule["guidance"] == before


async def test_an_engine_that_measures_its_own_steps_is_waited_for(endpoint: Endpoint) -> None:
    endpoint.calibrations_left = 3
    await to_thread(Steering(endpoint.url).set_k, 3)
    assert endpoint.calibrations_left < 0


@pytest.mark.parametrize(
    ("token", "given", "said"),
    [
        (TOKEN, None, "wants --control-token to set K: it must be the engine's SPECPILOT_ENGINE_CONTROL_TOKEN"),
        (TOKEN, "another", "refuses this --control-token"),
        (None, None, "rejects a change of K from here, because it has no control token"),
        (TOKEN, TOKEN, ""),
    ],
)
async def test_an_engine_elsewhere_lets_its_token_set_k_and_nobody_else(
    token: str | None, given: str | None, said: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", token or "")
    endpoint.guard = SpeculationEndpoint()
    steering = Steering(endpoint.url, given)
    if said:
        with pytest.raises(RefusedError, match=said):
            await to_thread(steering.state)
    else:
        await to_thread(steering.set_k, 3)
        assert endpoint.ks == [3]
    assert {seen.path for seen in endpoint.seen if TOKEN in str(seen.headers)} <= {"/speculation"}


async def test_a_sweep_without_the_token_ends_before_anything_is_measured(
    endpoint: Endpoint, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", TOKEN)
    endpoint.guard = SpeculationEndpoint()
    assert await sweep(tmp_path, f"p-eagle={endpoint.url}", "--k", "1,3", "--control-token", "another") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "name the endpoint otherwise to measure it at the K that it has" in line
    assert "another" not in line.replace("another one", "")
    assert not endpoint.asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(b"{}", "404 Not Found"), "has no /speculation, so it is no engine of SpecPilot's"),
        (reply(b"{}"), "does not report the K in force, so it is no engine of SpecPilot's"),
        (reply(b'{"ranks": []}'), "has data-parallel ranks"),
        (reply(b'{"error": "no key"}', "401 Unauthorized"), "refuses to name its K: 401"),
    ],
)
async def test_what_cannot_be_steered_is_told_apart(answer: bytes, said: str, endpoint: Endpoint) -> None:
    endpoint.choose = lambda _: [answer]
    with pytest.raises(EndpointError, match=said):
        await to_thread(Steering(endpoint.url).state)

"""Streams of engines that end them by closing the connection: HTTP/1.0, or no length and no chunks."""

import pytest

from specpilot.gateway.routing.outlier_detection import FAILURES_ALLOWED
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import CLOSE, DONE, Script, ScriptedEngine, event, stream, usage_event
from tests.support.stream_events import CREATED

HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    "script", [[HEAD, 0.02, CLOSE], [HEAD, event("a")[:20], 0.02, CLOSE], [HEAD, CREATED, CLOSE]],
    ids=["nothing", "part of an event", "what opens a stream"],
)  # fmt: skip
async def test_one_that_ends_before_its_first_content_is_asked_for_elsewhere(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script, other_engine.script = script, stream("ok")
    gateway = await start_gateway(engine, other_engine)
    for _ in range(2 * FAILURES_ALLOWED + 2):
        answer = await call(gateway.port, request(STREAM))
        assert (answer.status, answer.body) == (200, b"".join([event("ok"), event("", finish="stop"), DONE]))
    assert len(engine.seen) == FAILURES_ALLOWED
    await engine.stop()
    await other_engine.stop()


async def test_one_that_ends_in_the_middle_counts_against_its_engine(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.script = [HEAD, event("a"), CLOSE]
    assert b"stream_broken" in (await call(gateway.port, request(STREAM))).body
    [one] = gateway.context.fleet.engines.values()
    assert one.outlier_detection.stream_failures == 1


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("size", [7, 1000], ids=["cut anywhere", "whole"])
async def test_usage_is_taken_out_for_who_did_not_ask(
    engine: ScriptedEngine, gateway: GatewayThread, asks: bool, size: int
) -> None:
    text = event("a") + usage_event(5) + DONE
    engine.script = [HEAD, *(text[at : at + size] for at in range(0, len(text), size)), CLOSE]
    answer = await call(gateway.port, request(ASKING if asks else STREAM))
    assert answer.body == event("a") + (usage_event(5) if asks else b"") + DONE
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 5

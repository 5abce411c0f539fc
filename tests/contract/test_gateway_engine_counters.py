"""The engines' counters of speculation, summed on the gateway's `/metrics`."""

from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import ScriptedEngine

PREFIX = "vllm:spec_decode_num_"
METRICS = request(path="/metrics", method="GET")


def counted(drafts: int, accepted: int) -> bytes:
    """What vLLM's `/metrics` says, of two ranks."""
    lines = []
    for rank in (0, 1):
        lines += [
            f'{PREFIX}drafts_total{{engine="{rank}",model_name="tiny"}} {drafts / 2}',
            f'{PREFIX}accepted_tokens_total{{engine="{rank}",model_name="tiny"}} {accepted / 2}',
            f'{PREFIX}accepted_tokens_per_pos_total{{engine="{rank}",model_name="tiny",position="0"}} {accepted / 2}',
        ]
    return "\n".join([*lines, ""]).encode()


async def sums(port: int) -> dict[str, float]:
    answer = await call(port, METRICS)
    assert answer.status == 200
    found = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:") and not sample.name.endswith("_created"):
                found[sample.name.removeprefix(PREFIX).removesuffix("_total")] = sample.value
    return found


async def test_sums_over_engines_grow_through_restarts_and_departures(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.metrics, other_engine.metrics = counted(1000, 500), counted(10, 6)
    gateway = await start_gateway(engine, other_engine, engine_counters_s=0.001)
    assert await sums(gateway.port) == {"drafts": 0, "accepted_tokens": 0, "accepted_tokens_per_pos": 0}
    engine.metrics, other_engine.metrics = counted(1008, 504), counted(12, 8)
    assert await sums(gateway.port) == {"drafts": 10, "accepted_tokens": 6, "accepted_tokens_per_pos": 6}
    engine.metrics = counted(4, 2)  # it was started anew
    assert (await sums(gateway.port))["drafts"] == 14
    await other_engine.stop()
    await eventually(lambda: len([item for item in gateway.context.fleet.engines.values() if item.cards]) == 2)
    assert (await sums(gateway.port))["drafts"] == 14
    await other_engine.start()
    other_engine.metrics = counted(20, 10)
    assert (await eventually_asked(gateway.port, other_engine))["drafts"] == 22


async def eventually_asked(port: int, engine: ScriptedEngine) -> dict[str, float]:
    """Ask for the sums until `engine` was read for them: it may be ejected for a moment."""
    before = engine.metrics_calls
    for _ in range(500):
        found = await sums(port)
        if engine.metrics_calls > before:
            return found
    raise AssertionError("the engine is not read")


async def test_engines_are_not_read_more_often_than_asked_nor_at_all_when_off(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.metrics = counted(2, 2)
    gateway = await start_gateway(engine, engine_counters_s=60.0)
    for _ in range(3):
        assert (await sums(gateway.port))["drafts"] == 0
    assert engine.metrics_calls == 1
    silent = await start_gateway(engine, engine_counters_s=0.0)
    assert await sums(silent.port) == {}
    assert engine.metrics_calls == 1


async def test_an_engine_that_hangs_or_has_no_metrics_takes_nothing_from_the_others(
    engine: ScriptedEngine, full_port: int, start_gateway: StartGateway
) -> None:
    engine.metrics = counted(2, 2)
    bare = await ScriptedEngine(models=["other"]).start()
    bare.metrics = b"not an exposition\xff\n"
    urls = (engine.url, bare.url, f"http://127.0.0.1:{full_port}")
    gateway = await start_gateway(engine=urls, engine_counters_s=0.001)
    assert (await sums(gateway.port))["drafts"] == 0  # an engine that hangs would be waited for without end
    await bare.stop()

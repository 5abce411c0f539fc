"""The record of an engine, as the gateway finds it in Redis."""

from specpilot.policy.records import EngineRecord


def record(engine_id: str, url: str, *, draining: bool = False) -> EngineRecord:
    return EngineRecord(
        engine_id=engine_id,
        url=url,
        model="tiny",
        pool="cpu",
        k_max=7,
        static_k=3,
        max_num_seqs=8,
        method="eagle3",
        vllm_version="0.32.0",
        adapter_version="0.1.0",
        started_at=1.0,
        heartbeat_at=2.0,
        draining=draining,
    )

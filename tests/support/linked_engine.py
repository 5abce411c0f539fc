"""The link of an engine, which has registered in a Redis and follows it on a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from specpilot.engine_adapter.agent.link import EngineLink
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.policy.clock import SystemClock
from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store
from tests.support.patience import PATIENCE_S
from tests.support.stack import until

RECORD = EngineRecord("e1", "http://e1", "m", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 1.0)


def new_control() -> SpeculationControl:
    return SpeculationControl("m", "p", k_max=7, static_k=3, max_running=32, engine_id="e1")


@contextmanager
def linked(store: Store, control: SpeculationControl | None = None, **more: Any) -> Iterator[EngineLink]:
    """An engine whose record is `RECORD`, until the end of the context; `more` are further arguments of its link."""
    link = EngineLink(store, control or new_control(), RECORD, SystemClock(), **more)
    thread = Thread(target=link.run)
    thread.start()
    try:
        until(lambda: [record.engine_id for record in store.engines()] == ["e1"], every=0.005)
        yield link
    finally:
        link.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()

"""A drafter on torch's meta device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specpilot.engine_adapter.vllm.v1 import backlog as module
from tests.support.device_apart import Drafter


@contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch) -> Drafter:
    monkeypatch.setattr(module, "set_forward_context", _nothing)
    return Drafter()

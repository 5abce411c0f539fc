"""An engine that fails the bench says so; one that hangs is ended."""

import sys
from pathlib import Path

import pytest

from specpilot.bench.adapter import engine_worker
from specpilot.bench.adapter.engine_worker import EngineWorker


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let `script` run in the place of the engine."""
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_an_engine_that_ends_is_named_with_what_it_said_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "echo no such model >&2; exit 3")
    with pytest.raises(RuntimeError, match=r"'stock' ended with status 3:\nno such model"):
        EngineWorker("stock", {}, {})


def test_an_engine_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_worker, "ANSWER_WITHIN_S", 2.0)
    program(tmp_path, monkeypatch, "echo loading >&2; exec sleep 60")
    with pytest.raises(RuntimeError, match=r"'stock' gave no answer within 2 s:\nloading"):
        EngineWorker("stock", {}, {})

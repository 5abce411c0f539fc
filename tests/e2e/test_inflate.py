"""An inflated pair in a real engine: the demo pair's text, token for token, and as many drafts accepted."""

import json
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.gpu_check.check import Check
from specpilot.bench.inflate import command
from specpilot.demo_model import DEMO_MODEL

pytestmark = [pytest.mark.engine, pytest.mark.extended("inflate"), pytest.mark.timeout(300)]


def replies(folder: Path, out: Path) -> dict[str, Any]:
    """Return the replies of a pair at K_max, and how many of its drafts were verified and accepted."""
    for name in ("parts", "logs"):
        (out / name).mkdir(parents=True)
    check = Check(out, folder / "target", folder / "peagle", DEMO_MODEL / "prompts", 7, [7], [4], None, None, None)
    check.path("machine").write_text(json.dumps({"data": {"device": None, "unfit": None}}))
    check.limit_s = 200.0
    options = check.steered(is_async=False, dtype="float32", enforce_eager=True)
    found = check.engine("caught up", options, "replies", texts=check.texts(4), tokens=24)
    return dict(found["never off"])


def test_text_and_acceptance_are_the_demo_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    command.main(["--shape", "tiny", "--dtype", "float32", "--out", str(tmp_path / "pair")])
    small, large = replies(DEMO_MODEL, tmp_path / "small"), replies(tmp_path / "pair", tmp_path / "large")
    assert large["ids"] == small["ids"]
    assert (large["verified"], large["accepted"]) == (small["verified"], small["accepted"])
    assert small["accepted"] > 20

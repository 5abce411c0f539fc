"""Which rows of the backlog go through the drafter, and that none is lost where vLLM cannot draft."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # vLLM's own, on import


def test_the_rows_of_those_who_catch_up_are_gathered_in_the_order_of_the_batch() -> None:
    from engine_adapter.backlog import lag  # noqa: PLC0415 - imports vLLM, which takes seconds

    rows = {"a": [0, 3], "b": [1, 2, 4], "c": [5], "gone": [6]}
    assert lag(rows, ["c", "a", "b", "new"], ["a", "b", "new", "gone"]) == ([1, 2], [[0, 3], [1, 2, 4]])


def test_what_one_pass_cannot_take_goes_through_several() -> None:
    from engine_adapter.backlog import Lag, passes  # noqa: PLC0415 - as above

    missing, ends = Lag([0, 2, 3, 5], [[0, 1], [2, 3], [4, 5, 6], [7]]), [9, 8, 7, 6]
    assert list(passes(missing, ends, 4)) == [
        (Lag([0, 2], [[0, 1], [2, 3]]), [9, 8]),
        (Lag([3, 5], [[4, 5, 6], [7]]), [7, 6]),
    ]
    assert list(passes(Lag([], []), [], 4)) == []


def four_rows() -> Any:
    """A backlog with room for four rows, all in use: of "a" two, of "gone" and "b" one each."""
    import torch  # noqa: PLC0415 - as above

    from engine_adapter.backlog import Backlog  # noqa: PLC0415 - as above

    config = SimpleNamespace(
        speculative_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        model_config=SimpleNamespace(uses_mrope=False),
    )
    backlog = Backlog(SimpleNamespace(vllm_config=config, device="cpu", dtype=torch.float32, hidden_size=1))
    backlog._rows, backlog._used = {"a": [0, 2], "gone": [1], "b": [3]}, 4
    for store in (backlog._hidden[:, 0], backlog._tokens, backlog._positions, backlog._slots):
        store.copy_(torch.arange(4))
    return backlog


def test_room_is_made_by_moving_together_what_the_batch_has_left() -> None:
    backlog = four_rows()
    backlog._make_room(1, ["b", "new", "a"])
    assert backlog._rows == {"b": [0], "a": [1, 2]}
    for store in (backlog._hidden[:, 0], backlog._tokens, backlog._positions, backlog._slots):
        assert store[: backlog._used].tolist() == [3, 0, 2]


def test_where_there_is_no_room_all_is_forgotten() -> None:
    backlog = four_rows()
    backlog._make_room(2, ["b", "new", "a"])
    assert (len(backlog), backlog._used) == (0, 0)


def test_requests_that_begin_anew_have_left_nothing() -> None:
    backlog = four_rows()
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="gone")],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids={"b"}),
    )
    backlog.catch_up(None, SimpleNamespace(scheduler_output=output), ())
    assert backlog._rows == {"a": [0, 2]}


def test_rows_past_the_drafters_length_limit_are_left_out() -> None:
    from engine_adapter.backlog import Lag, within  # noqa: PLC0415 - as above

    missing = Lag([0, 2, 3], [[0, 1, 2], [3, 4, 5], [6]])
    assert within(missing, [100, 999, 102, 120], 100) == (Lag([0, 2], [[0, 1, 2], [3]]), [100, 100])
    assert within(missing, [50, 999, 51, 52], 100) == (missing, [50, 51, 52])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_nothing_is_lost_while_a_request_beyond_the_drafters_limit_keeps_vllm_from_drafting(kind: str) -> None:
    command = [sys.executable, "-m", "tests.support.too_long", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=350, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1])
    whole, caught_up, hole = found["whole"], found["caught up"], found["hole"]
    assert {name for name, count in caught_up["seen"].items() if not count} == set()
    assert whole["ids"] == caught_up["ids"] == hole["ids"]
    assert (caught_up["accepted"], caught_up["verified"]) == (whole["accepted"], whole["verified"])
    assert hole["accepted"] / hole["verified"] < 0.95 * whole["accepted"] / whole["verified"]

"""The sums of engines' counters: they never fall, and nothing is counted twice."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.telemetry.engine_counters import (
    ENGINES_REMEMBERED,
    Account,
    EngineCounters,
    OwnAccount,
    SharedAccount,
    exposition,
)
from specpilot.gateway.wire.spec_decode import Reading, key_of

DRAFTS = key_of("num_drafts", "", "m")


def reading(url: str, count: float, at: float, took_s: float = 0.0) -> Reading:
    return Reading(url, at, at + took_s, {DRAFTS: count})


def test_a_first_reading_adds_nothing_but_shows_the_series() -> None:
    account = Account()
    account.add([reading("a", 1000, 1)], 1)
    assert account.totals == {DRAFTS: 0}
    account.add([reading("a", 1010, 2), reading("b", 500, 2)], 2)
    account.add([reading("a", 1011, 3), reading("b", 505, 3)], 3)
    assert account.totals == {DRAFTS: 16}


def test_a_restart_counts_from_zero_and_an_absence_changes_nothing() -> None:
    account = Account()
    account.add([reading("a", 100, 1)], 1)
    account.add([reading("a", 7, 2)], 2)
    account.add([], 3)
    account.add([reading("a", 9, 4)], 4)
    assert account.totals == {DRAFTS: 9}


def test_a_series_that_appears_later_counts_whole() -> None:
    account = Account()
    account.add([reading("a", 1, 1)], 1)
    position = key_of("num_accepted_tokens_per_pos", "0", "m")
    account.add([Reading("a", 2, 2, {DRAFTS: 2, position: 1})], 2)
    assert account.totals == {DRAFTS: 1, position: 1}


def test_a_reading_that_may_be_older_than_the_last_is_no_restart() -> None:
    account = Account()
    account.add([reading("a", 100, 1)], 1)
    account.add([reading("a", 120, 2, took_s=1)], 3)
    account.add([reading("a", 110, 2.5)], 3)
    assert account.totals == {DRAFTS: 20}


def test_engines_that_left_are_forgotten_at_last() -> None:
    account = Account()
    for index in range(ENGINES_REMEMBERED + 5):
        account.add([reading(str(index), 1, index)], index)
    assert len(account.last) == len(account.read_at) == ENGINES_REMEMBERED
    assert "0" not in account.last


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.booleans()), max_size=40))
def test_sums_never_fall_and_are_what_grew_while_it_was_watched(steps: Sequence[tuple[str, int, bool]]) -> None:
    account, counts, watched = Account(), {"a": 0.0, "b": 0.0}, 0.0
    seen: set[str] = set()
    last = 0.0
    for at, (url, more, is_restart) in enumerate(steps):
        before = counts[url]
        counts[url] = more if is_restart else before + more
        if url in seen:
            watched += counts[url] if counts[url] < before else counts[url] - before
        seen.add(url)
        account.add([reading(url, counts[url], at)], at)
        assert account.totals[DRAFTS] >= last
        last = account.totals[DRAFTS]
    assert last == watched


def test_they_are_shown_as_vllm_names_and_labels_them() -> None:
    """What `vllm bench serve` looks for: names that end in `_total`, and the label `position`."""
    text = exposition({DRAFTS: 3.0, key_of("num_accepted_tokens_per_pos", "1", "m"): 2.0}).decode()
    assert 'vllm:spec_decode_num_drafts_total{model_name="m"} 3.0\n' in text
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 2.0\n' in text
    assert exposition({}) == b""


def test_engines_are_read_once_for_all_who_ask_at_once_and_not_before_it_is_due() -> None:
    now = 10.0
    asked = 0

    async def ask() -> list[Reading]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return [reading("a", 10.0 * asked, now)]

    async def run() -> None:
        nonlocal now
        counters = EngineCounters(ask, OwnAccount(), lambda: now, 1.0)
        assert await asyncio.gather(*(counters.read() for _ in range(5))) == [{DRAFTS: 0}] * 5
        now = 10.9
        await counters.read()
        assert asked == 1
        now = 11.0
        assert await counters.read() == {DRAFTS: 10}
        assert asked == 2

    asyncio.run(run())


def test_workers_share_one_account_and_lose_nothing_of_one_another(tmp_path: Path) -> None:
    """Each thread stands for a worker whose reading comes after that of the one before."""
    keepers = [SharedAccount(tmp_path) for _ in range(4)]
    keepers[0].add([reading("a", 0, 0), *(reading(str(at), 0, 0) for at in range(40))], 0)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(keepers[at % 4].add, [reading(str(at), 5, 1)], 1) for at in range(40)]
        totals = [item.result().totals[DRAFTS] for item in done]
    assert max(totals) == 200
    assert keepers[1].load().totals == {DRAFTS: 200}
    assert keepers[2].load().updated_at == 1

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from specpilot.controller.cli.export import (
    Drafter,
    Format,
    one_row,
    refusal_of,
    row_shares,
    sglang_notes,
    sglang_table,
    vllm_table,
)
from specpilot.policy.schedule import KRange, range_faults

CLASSES = {
    "default": [[1, 8, 3], [9, 64, 1]],
    "code": [[1, 4, 7], [5, 64, 5]],
    "code:7": [[1, 64, 7]],
    "chat": [[1, 2, 2], [3, 64, 0]],
}


def test_without_traffic_it_is_the_row_default() -> None:
    row, said = one_row(CLASSES, {})
    assert row == [(1, 8, 3), (9, 64, 1)]
    assert "the row 'default' alone" in said


def test_with_traffic_it_is_the_mean_of_the_rows_by_share() -> None:
    row, said = one_row(CLASSES, {"code": 0.75, "chat": 0.25, "gone": 0.5, "default": 0.0})
    assert row == [(1, 2, 6), (3, 4, 5), (5, 64, 4)]
    assert "chat 25%, code 75%" in said
    assert one_row(CLASSES, {"code:7": 1.0})[0] == [(1, 64, 7)]


BANDED = {"default": [[1, 64, 1]], **{f"default:{band}": [[1, 64, band]] for band in range(8)}, "batch": [[1, 64, 0]]}


def test_rows_by_band_weigh_what_runs_in_their_band() -> None:
    evidence = {
        "classes": {"code": {"share": 0.75, "measured_length": 3.0}, "batch": {"share": 0.25, "measured_length": None}},
        "bands": {"2": {"share": 0.5}, "5": {}, "6": {"share": 0.5}},
    }
    shares = row_shares(BANDED, evidence)
    assert shares == {"default:2": 0.375, "default:6": 0.375, "batch": 0.25}
    assert one_row(BANDED, shares)[0] == [(1, 64, 3)]
    assert row_shares(BANDED, {}) == {}


def test_without_traffic_the_row_that_serves_nobody_says_nothing() -> None:
    row, said = one_row(BANDED, {})
    assert row == [(1, 64, 4)]
    assert "the mean of the rows of 'default'" in said


rows = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=5).map(
    lambda pieces: [
        [1 + sum(size for size, _ in pieces[:at]), sum(size for size, _ in pieces[: at + 1]), k]
        for at, (_, k) in enumerate(pieces)
    ]
)


@settings(deadline=None)
@given(rows, rows, st.floats(0.01, 1))
def test_a_row_is_whole_and_vllm_reads_from_it_what_it_says(first: list, second: list, share: float) -> None:  # type: ignore[type-arg]
    row, _ = one_row({"default": first, "code": second}, {"default": 1 - share, "code": share})
    assert range_faults(tuple(row)) == []
    table = vllm_table(row)
    if table["num_speculative_tokens"] == 0:
        return
    dense = build_dynamic_sd_schedule_lookup(
        table["num_speculative_tokens_per_batch_size"], row[-1].hi, table["num_speculative_tokens"]
    )
    assert dense[1:] == [k for lo, hi, k in row for _ in range(lo, hi + 1)]


@pytest.mark.parametrize("drafter", Drafter)
@pytest.mark.parametrize("form", Format)
def test_it_is_refused_where_the_drafter_cannot_use_it(form: Format, drafter: Drafter) -> None:
    usable = {Format.VLLM: set(Drafter) - {Drafter.P_EAGLE}, Format.SGLANG: {Drafter.EAGLE, Drafter.EAGLE3}}
    refusal = refusal_of(form, drafter)
    assert (refusal is None) == (drafter in usable[form])
    assert refusal is None or "specpilot engine" in refusal


def test_the_table_for_sglang_has_one_k_from_each_batch_size_on_and_a_list_for_older_versions() -> None:
    row = [KRange(1, 4, 5), KRange(5, 8, 2), KRange(9, 9, 0)]
    assert sglang_table(row) == {
        "candidate_steps": [2, 5],
        "1": {"candidate_steps": [5]},
        "5": {"candidate_steps": [2]},
        "9": {"candidate_steps": [0]},
    }
    assert "--speculative-num-steps 5 --speculative-num-draft-tokens 6" in sglang_notes(row)[0]

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

from specpilot.controller.cli.export import (
    Drafter,
    Format,
    refusal_of,
    sglang_notes,
    sglang_table,
    vllm_table,
)
from specpilot.policy.schedule import KRange

rows = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=5).map(
    lambda pieces: [
        KRange(1 + sum(size for size, _ in pieces[:at]), sum(size for size, _ in pieces[: at + 1]), k)
        for at, (_, k) in enumerate(pieces)
    ]
)


@settings(deadline=None)
@given(rows)
def test_vllm_reads_from_a_row_what_it_says(row: list[KRange]) -> None:
    table = vllm_table(row)
    if table["num_speculative_tokens"] == 0:
        return
    dense = build_dynamic_sd_schedule_lookup(
        table["num_speculative_tokens_per_batch_size"], row[-1].hi, table["num_speculative_tokens"]
    )
    assert dense[1:] == [k for lo, hi, k in row for _ in range(lo, hi + 1)]


@pytest.mark.parametrize("drafter", get_args(Drafter))
@pytest.mark.parametrize("form", get_args(Format))
def test_it_is_refused_where_the_drafter_cannot_use_it(form: Format, drafter: Drafter) -> None:
    usable = {"vllm": {*get_args(Drafter)} - {"p-eagle"}, "sglang": {"eagle", "eagle3"}}
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

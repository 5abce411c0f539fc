"""The kernels of a GPU that lay out drafts, verify them, and read them with recurrent layers, at every width."""

from typing import Any

import pytest

from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.extended("Triton kernels"), pytest.mark.timeout(300)]

KERNELS = {
    "copy_and_expand_eagle_inputs_kernel": 112,
    "eagle_prepare_inputs_padded_kernel": 56,
    "eagle_prepare_next_token_padded_kernel": 56,
    "eagle_step_slot_mapping_metadata_kernel": 56,
    "rejection_greedy_sample_kernel": 112,
    "rejection_random_sample_kernel": 112,
    "sample_recovered_tokens_kernel": 112,
    "expand_kernel": 56,
}
"""How many batches each is compared on: widths 1 to 8, 1 to 7 requests, and the kernel's own variants."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return run("triton_kernels")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_gives_what_the_cpus_own_function_gives(found: dict[str, Any], kernel: str) -> None:
    assert found[kernel] == {"compared": KERNELS[kernel], "differ": []}


def test_the_kernels_of_recurrent_layers_are_exact_while_requests_verify_different_numbers_of_drafts() -> None:
    found = run("interpreter", "tests.support.recurrent_kernels")
    assert set(found) == {"convolution", "delta rule", "Mamba2"}
    for kernel in found.values():
        assert kernel["steps"] > 10
        assert kernel["largest"] < 1e-4

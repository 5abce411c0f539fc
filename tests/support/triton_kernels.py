"""vLLM's Triton kernels that lay out drafts and verify them, interpreted on a CPU, beside the CPU's own functions.

A GPU runs these kernels, and the tests' engines run what vLLM's builds for CPUs have in their place. Run as a program,
with `TRITON_INTERPRET=1` in its environment, it gives both the same random batches at every width and prints, by
kernel, in how many of them the outputs were compared and in which they differ.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from triton.backends import backends

# vLLM for CPUs looks for a driver of theirs before it takes Triton's kernels for more than placeholders.
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))  # type: ignore[assignment]

from vllm.platforms import current_platform  # noqa: E402 - after the line above
from vllm.utils import cpu_triton_utils  # noqa: E402 - after the line above
from vllm.v1.sample import rejection_sampler  # noqa: E402 - after the line above
from vllm.v1.spec_decode import utils  # noqa: E402 - after the line above

WIDTHS = range(1, 9)
BATCHES = range(1, 8)
VOCABULARY = 37
MASK_TOKEN, BLOCK = 36, 4

Case = tuple[tuple[int, ...], list[Any], dict[str, Any], list[int]]
"""A grid, a kernel's arguments, its constants, and which of the arguments it writes."""


def ints(values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def starts_of(lengths: list[int]) -> list[int]:
    """Running total with a leading zero."""
    found = [0]
    for length in lengths:
        found.append(found[-1] + length)
    return found


def laid_out(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`copy_and_expand_eagle_inputs_kernel`: requests with prompts or verified drafts, some of them rejected."""
    lengths = [rng.choice([1, 1, width + 1, rng.randint(2, 12)]) for _ in range(count)]
    rejected = [rng.randrange(length) for length in lengths]
    starts = starts_of(lengths)
    ends = [starts[i + 1] - 1 - rejected[i] for i in range(count)]
    total = starts[-1]
    for shift in (True, False):
        out = total + count * (width - 1 if shift else width)
        yield (
            (count, -(-(max(lengths) + width) // BLOCK)),
            [
                ints([rng.randrange(VOCABULARY) for _ in range(total)]),
                ints([100 * i + at for i, length in enumerate(lengths) for at in range(length)], torch.int64),
                ints([rng.randrange(VOCABULARY) for _ in range(count)]),
                torch.full((out,), -7, dtype=torch.int32),
                torch.full((out,), -7, dtype=torch.int64),
                torch.zeros(out, dtype=torch.bool),
                torch.zeros(out, dtype=torch.bool),
                torch.full((width * count,), -7, dtype=torch.int32),
                torch.full((total,), -7, dtype=torch.int32),
                ints(starts),
                ints(ends),
                0,
                MASK_TOKEN,
                total,
                width,
                shift,
            ],
            {"BLOCK_SIZE_TOKENS": BLOCK},
            [3, 4, 5, 6, 7, 8],
        )


def drafted(rng: random.Random, width: int, count: int) -> list[int]:
    """How many drafts of each request are verified: up to `width`, none of some."""
    return [rng.choice([0, width, rng.randint(0, width)]) for _ in range(count)]


def prepared_inputs(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`eagle_prepare_inputs_padded_kernel`."""
    numbers = drafted(rng, width, count)
    yield (
        (count,),
        [
            ints(starts_of(numbers)[1:]),
            ints([rng.randint(1, number + 1) for number in numbers]),
            ints(starts_of([number + 1 for number in numbers])),
            torch.full((count,), -7, dtype=torch.int32),
            torch.full((count,), -7, dtype=torch.int32),
            count,
        ],
        {},
        [3, 4],
    )


def next_tokens(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`eagle_prepare_next_token_padded_kernel`: some tokens rejected, all of a request's discarded."""
    sampled = torch.full((count, width + 1), -1, dtype=torch.int32)
    for row in sampled:
        valid = rng.randint(0, width + 1)
        row[:valid] = ints([rng.randrange(VOCABULARY) for _ in range(valid)])
    yield (
        (count,),
        [
            sampled,
            torch.tensor([rng.random() < 0.3 for _ in range(count)]),
            ints([rng.randrange(VOCABULARY) for _ in range(count)]),
            torch.full((count,), -7, dtype=torch.int32),
            torch.full((count,), -7, dtype=torch.int32),
            VOCABULARY,
            width + 1,
            count,
            sampled.stride(0),
        ],
        {"BLOCK_SIZE_TOKENS": utils.next_power_of_2(width + 1)},
        [3, 4],
    )


def next_slots(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`eagle_step_slot_mapping_metadata_kernel`: a step of a sequential drafter, up to the longest sequence."""
    longest, size = 32, 4
    positions = [rng.choice([rng.randrange(longest), longest - 1]) for _ in range(count)]
    yield (
        (count,),
        [
            ints(positions, torch.int64),
            torch.arange(count * (longest // size), dtype=torch.int32).view(count, -1),
            longest // size,
            ints([position + rng.randint(0, width) + 1 for position in positions]).clamp(max=longest),
            torch.full((count,), -7, dtype=torch.int64),
            torch.full((count,), -7, dtype=torch.int64),
            size,
            longest,
            longest // size,
            -1,
            count,
        ],
        {},
        [3, 4, 5],
    )


def verified(rng: random.Random, width: int, count: int) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how many drafts each request has, the drafts, what the target would say, and the bonus tokens."""
    numbers = drafted(rng, width, count)
    drafts = ints([rng.randrange(VOCABULARY) for _ in range(sum(numbers))])
    is_right = torch.tensor([rng.random() < 0.7 for _ in drafts], dtype=torch.bool)
    target = torch.where(is_right, drafts, (drafts + 1) % VOCABULARY).long()
    return numbers, drafts, target, ints([rng.randrange(VOCABULARY) for _ in range(count)], torch.int64)


def greedy(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`rejection_greedy_sample_kernel`: all requests greedy, or some."""
    numbers, drafts, target, bonus = verified(rng, width, count)
    for is_greedy in (None, torch.tensor([rng.random() < 0.5 for _ in range(count)])):
        output = torch.full((count, width + 1), -1, dtype=torch.int32)
        arguments = [output, ints(starts_of(numbers)[1:]), drafts, target, bonus, is_greedy, width, None, None]
        yield (count,), arguments, {"SYNTHETIC_MODE": False}, [0]


def probabilities(rng: random.Random, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return torch.rand(count, VOCABULARY, generator=generator).pow(6).softmax(dim=-1)


def sampled(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`rejection_random_sample_kernel`: with the drafter's probabilities and without, some requests greedy."""
    numbers, drafts, _, bonus = verified(rng, width, count)
    total = len(drafts)
    for draft_probs in (None, probabilities(rng, total)):
        yield (
            (count,),
            [
                torch.full((count, width + 1), -1, dtype=torch.int32),
                ints(starts_of(numbers)[1:]),
                drafts,
                draft_probs,
                probabilities(rng, total),
                bonus,
                ints([rng.randrange(VOCABULARY) for _ in range(total)]),
                torch.tensor([rng.random() * 0.05 for _ in range(total)], dtype=torch.float64),
                torch.tensor([rng.random() < 0.3 for _ in range(count)]),
                width,
                VOCABULARY,
                None,
            ],
            {"NO_DRAFT_PROBS": draft_probs is None, "SYNTHETIC_MODE": False},
            [0],
        )


def recovered(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`sample_recovered_tokens_kernel`: the token in place of a rejected draft."""
    numbers, drafts, _, _ = verified(rng, width, count)
    total = len(drafts)
    for draft_probs in (None, probabilities(rng, total)):
        yield (
            (count, width),
            [
                torch.full((total,), -7, dtype=torch.int32),
                ints(starts_of(numbers)[1:]),
                drafts,
                draft_probs,
                probabilities(rng, total),
                probabilities(rng, count).reciprocal(),
                VOCABULARY,
            ],
            {"BLOCK_SIZE": 16, "NO_DRAFT_PROBS": draft_probs is None, "USE_FP64_GUMBEL": False},
            [0],
        )


def expanded(rng: random.Random, width: int, count: int) -> Iterator[Case]:
    """`expand_kernel`, for integers; for floats the adapter has a function of its own."""
    numbers = drafted(rng, width, count)
    values = ints([rng.randrange(3) for _ in range(count)], torch.int64)
    output = torch.full((sum(numbers),), -7, dtype=torch.int64)
    yield (count,), [output, values, ints(starts_of(numbers)[1:]), 0, 1], {"MAX_NUM_TOKENS": 16}, [0]


KERNELS: dict[str, tuple[Any, Callable[[random.Random, int, int], Iterator[Case]]]] = {
    "copy_and_expand_eagle_inputs_kernel": (utils, laid_out),
    "eagle_prepare_inputs_padded_kernel": (utils, prepared_inputs),
    "eagle_prepare_next_token_padded_kernel": (utils, next_tokens),
    "eagle_step_slot_mapping_metadata_kernel": (utils, next_slots),
    "rejection_greedy_sample_kernel": (rejection_sampler, greedy),
    "rejection_random_sample_kernel": (rejection_sampler, sampled),
    "sample_recovered_tokens_kernel": (rejection_sampler, recovered),
    "expand_kernel": (rejection_sampler, expanded),
}


def compared(name: str) -> dict[str, Any]:
    """Give both the same batches."""
    owner, cases = KERNELS[name]
    kernel, own = getattr(owner, name), getattr(cpu_triton_utils, f"_{name}_impl")
    rng, count, differ = random.Random(3), 0, list[str]()
    for width in WIDTHS:
        for requests in BATCHES:
            for grid, arguments, constants, written in cases(rng, width, requests):
                theirs, ours = ([_copied(item) for item in arguments] for _ in range(2))
                kernel[grid](*theirs, **constants)
                own(*ours, **constants)
                count += 1
                differ += [
                    f"width {width}, {requests} requests, argument {at}: {theirs[at].tolist()} and {ours[at].tolist()}"
                    for at in written
                    if not torch.equal(theirs[at], ours[at])
                ]
    return {"compared": count, "differ": differ}


def _copied(item: Any) -> Any:
    return item.clone() if isinstance(item, torch.Tensor) else item


if __name__ == "__main__":
    current_platform.import_kernels()
    sys.stdout.write(json.dumps({name: compared(name) for name in sys.argv[1:] or KERNELS}) + "\n")

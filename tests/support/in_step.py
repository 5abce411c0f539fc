"""Acceptance after a spell of K = 0 in which two requests leave as many rows: one of them more than a pass takes.

Both come to what the drafter takes in a step at the same time. One catches up, so the other leaves one row more and
goes through in two passes. Finds for the ways of `too_long` what that finds.
"""

import sys
from typing import Any

from tests.support.engine_program import replies
from tests.support.too_long import AFTER, BEGIN, SPELL, Watch, add, tell

REQUESTS = 2
TOKENS = 96
"""A step's, and so a pass's: the spell is longer, and at its end the rows of both fit into one pass."""


def _serve(engine: Any, watch: Watch, texts: list[str]) -> dict[str, list[int]]:
    """Return the token ids of the replies."""
    for number, text in enumerate(texts[::-1] if watch.way == "warm-up" else texts):
        add(engine, str(number), text, SPELL + AFTER + 3 * BEGIN)
    return replies(engine, lambda step: setattr(watch, "step", step))


if __name__ == "__main__":
    tell(
        sys.argv[1],
        _serve,
        REQUESTS,
        {},
        max_num_batched_tokens=TOKENS,
        max_num_seqs=REQUESTS,
        max_model_len=512,
        num_gpu_blocks_override=16,
    )

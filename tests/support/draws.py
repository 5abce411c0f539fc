"""The first tokens of many replies to one prompt at temperature 1, while K changes at random.

`run("draws", "plain|peagle|eagle3", DRAWS, PROMPT)`, on model runner V2 through `tests.support.interpreter`. PROMPT is
a number. Finds for each position how often each token was drawn.
"""

import random
import sys
from collections import Counter

from vllm import SamplingParams

from specpilot.bench.gpu_engine.engine import prompt_texts
from specpilot.policy.bands import BANDS
from tests.support.engine_program import finish, head, offer, replies, start
from tests.support.stack import DEMO_MODEL

TOKENS, TOGETHER, K_MAX = 3, 32, 7


def main(kind: str, draws: int, prompt: int) -> None:
    """Draw, and report."""
    speculative = None if kind == "plain" else head(kind, K_MAX)
    llm = start(speculative, max_num_seqs=TOGETHER, max_model_len=256, max_num_batched_tokens=1024)
    control = getattr(llm.llm_engine.engine_core.engine_core.scheduler, "control", None)
    *_, text = prompt_texts(DEMO_MODEL / "prompts", 1 + prompt)
    rng = random.Random(3)
    for number in range(draws):
        sampling = SamplingParams(temperature=1.0, max_tokens=TOKENS + 1, ignore_eos=True)
        llm.llm_engine.add_request(str(number), text[-80:], sampling)

    def change(_: int) -> None:
        if control is not None and rng.random() < 0.5:
            depths = [0, 0, *range(K_MAX + 1)]
            row = rng.choice([[rng.choice(depths)] * BANDS, rng.choices(depths, k=BANDS)])  # half of the time K differs
            k = {"default": row[0]} | {f"default:{band}": each for band, each in enumerate(row)}
            offer(control, k, rng.choice([0.0, 0.02, 1.0]))

    drawn = replies(llm.llm_engine, change).values()
    finish({"counts": [Counter(reply[position] for reply in drawn) for position in range(TOKENS)]})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""The first tokens of many replies to one prompt at temperature 1, while K changes at random.

`run("draws", "plain|peagle|eagle3", DRAWS)`, on model runner V2 through `tests.support.interpreter`. Finds for each
position how often each token was drawn.
"""

import random
import sys
from collections import Counter

from vllm import SamplingParams

from specpilot.bench.gpu_engine.engine import prompt_texts
from tests.support.engine_program import finish, head, offer, replies, start
from tests.support.stack import DEMO_MODEL

TOKENS, TOGETHER, K_MAX = 3, 32, 7


def main(kind: str, draws: int) -> None:
    """Draw, and report."""
    speculative = None if kind == "plain" else head(kind, K_MAX)
    llm = start(speculative, max_num_seqs=TOGETHER, max_model_len=256, max_num_batched_tokens=1024)
    control = getattr(llm.llm_engine.engine_core.engine_core.scheduler, "control", None)
    [text] = prompt_texts(DEMO_MODEL / "prompts", 1)
    rng = random.Random(3)
    for number in range(draws):
        sampling = SamplingParams(temperature=1.0, max_tokens=TOKENS + 1, ignore_eos=True)
        llm.llm_engine.add_request(str(number), text[-80:], sampling)

    def change(_: int) -> None:
        if control is not None and rng.random() < 0.5:
            offer(control, {"default": rng.choice([0, 1, 2, 3, 5, K_MAX])})

    drawn = replies(llm.llm_engine, change).values()
    finish({"counts": [Counter(reply[position] for reply in drawn) for position in range(TOKENS)]})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

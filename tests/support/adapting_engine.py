"""A real engine that adapts alone, in this process: no Redis, no controller, no server.

`run("adapting_engine", STEPS)` keeps 2 requests for JSON running, and 2 of random text, until the law has chosen K
often enough, and for so many steps more. It finds where K came from, and the mean K that the law gave each kind in
these steps.
"""

import sys
import time
from collections import defaultdict

from vllm import SamplingParams

from specpilot.bench.gpu_engine.engine import chat_text
from specpilot.engine_adapter import number_format
from tests.support.engine_program import finish, head, start
from tests.support.stack import prompts

RUNNING = {"json": 2, "chat": 2}
"""Requests at all times: so few that a step costs nearly the same for every K. Then drafts of JSON pay on every
machine, a busy one too."""
TEMPERATURE = {"json": 0.0, "chat": 2.0}
"""At 2 hardly any draft is accepted, so its drafts pay on no machine."""


LEARNT = 10
"""Choices of the law, one in a second at most: the first ones know few drafts and few steps."""


def main(steps: int) -> None:
    """Run and report."""
    llm = start(head("peagle"), dtype=number_format.fitting(), max_num_seqs=16, max_model_len=1024, seed=0)
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    waiting = defaultdict(list)
    for name, item in prompts(90):
        waiting[name].append(chat_text(llm, item["messages"]))
    begun = 0
    kinds: dict[str, str] = {}

    def begin(kind: str) -> None:
        nonlocal begun
        begun += 1
        kinds[str(begun)] = kind
        text = waiting[kind][begun % len(waiting[kind])]
        engine.add_request(str(begun), text, SamplingParams(temperature=TEMPERATURE[kind], max_tokens=150))

    for kind, count in RUNNING.items():
        for _ in range(count):
            begin(kind)
    given: defaultdict[str, list[int]] = defaultdict(list)
    while steps:
        for output in engine.step():
            if output.finished:
                begin(kinds[output.request_id])
        if scheduler.planner.prices is not None and scheduler.law.choices >= LEARNT:
            steps -= 1
            for state in scheduler.steps.decoding:
                given[kinds[state.request_id.split("-", maxsplit=1)[0]]].append(state.chosen_k)
    finish(
        {
            "source": scheduler.control.table(time.monotonic()).source,
            "k": {kind: sum(found) / len(found) for kind, found in given.items()},
        }
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))

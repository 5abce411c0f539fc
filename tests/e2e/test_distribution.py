"""At temperature 1 the text has the target's distribution: two-sample chi-square tests against no speculation."""

from collections import Counter

import numpy as np
import pytest

from specpilot.bench.adapter.engine_worker import EngineWorker
from specpilot.bench.gpu_engine.engine import prompt_texts
from tests.support.chi_square import SIGMAS, sigmas
from tests.support.stack import DEMO_MODEL

pytestmark = [pytest.mark.engine, pytest.mark.extended("V1 sampled"), pytest.mark.timeout(600)]

DRAWS = 2500
PREFIXES = 2
TOKENS = 3  # the first is sampled by the prefill; the others are drafted and verified


def drawn(speculates: bool) -> list[list[Counter[int]]]:
    """Return for every prefix how often each token was drawn at each position."""
    options = {"model": str(DEMO_MODEL / "target"), "dtype": "float32"}
    if speculates:
        options |= {
            "scheduler_cls": "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler",
            "speculative_config": {
                "method": "eagle3",
                "model": str(DEMO_MODEL / "peagle"),
                "num_speculative_tokens": 7,
                "parallel_drafting": True,
            },
        }
    one_thread = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", **one_thread}
    worker = EngineWorker("speculating" if speculates else "plain", options, variables)
    try:
        found = []
        for number, text in enumerate(prompt_texts(DEMO_MODEL / "prompts", PREFIXES)):
            extra = {"thrash_seed": number} if speculates else {}
            ids = worker.run([text[-80:]] * DRAWS, TOKENS, temperature=1.0, ids=True, **extra)["ids"]
            found.append([Counter(reply[position] for reply in ids) for position in range(TOKENS)])
        return found
    finally:
        worker.close()


def test_the_test_sees_a_distribution_that_is_off() -> None:
    rng = np.random.default_rng(0)
    even = Counter(rng.choice(20, DRAWS).tolist())
    again = Counter(rng.choice(20, DRAWS).tolist())
    skewed = Counter(rng.choice(20, DRAWS, p=[0.08, 0.02, *[0.05] * 18]).tolist())
    assert sigmas(even, again, DRAWS) < SIGMAS < sigmas(even, skewed, DRAWS)


def test_sampled_text_has_the_targets_distribution_while_k_changes() -> None:
    plain, speculating = drawn(speculates=False), drawn(speculates=True)
    found = [
        round(sigmas(mine, theirs, DRAWS), 1)
        for prefix in zip(speculating, plain, strict=True)
        for mine, theirs in zip(*prefix, strict=True)
    ]
    assert max(found) < SIGMAS, found

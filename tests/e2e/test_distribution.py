"""At temperature 1 the text has the target's distribution: two-sample chi-square tests against no speculation."""

from collections import Counter

import numpy as np
import pytest

from tests.support.chi_square import SIGMAS, sigmas
from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.extended("V1 sampled"), pytest.mark.timeout(600)]

DRAWS = 2500


def test_the_test_sees_a_distribution_that_is_off() -> None:
    rng = np.random.default_rng(0)
    even = Counter(rng.choice(20, DRAWS).tolist())
    again = Counter(rng.choice(20, DRAWS).tolist())
    skewed = Counter(rng.choice(20, DRAWS, p=[0.08, 0.02, *[0.05] * 18]).tolist())
    assert sigmas(even, again, DRAWS) < SIGMAS < sigmas(even, skewed, DRAWS)


@pytest.mark.parametrize("prompt", ["0", "1"])
def test_sampled_text_has_the_targets_distribution_while_k_changes(prompt: str) -> None:
    plain, speculating = (run("draws", kind, str(DRAWS), prompt)["counts"] for kind in ("plain", "peagle"))
    found = [sigmas(Counter(mine), Counter(theirs), DRAWS) for mine, theirs in zip(speculating, plain, strict=True)]
    assert max(found) < SIGMAS, found

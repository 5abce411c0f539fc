"""What affinity earns and costs: conversations over four simulated engines with bounded caches, under the real choice.

An engine computes the prompt tokens that its cache lacks one after another, and decodes its requests together, the
slower the more there are. Simulated time, seeded: the same numbers on every machine.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from specpilot.gateway.routing.chooser import Affinity, Balance, Chooser, Rule
from tests.support.candidates import One, chat

ENGINES = 4
CACHE_TOKENS = 150_000
PREFILL_TOKENS_PER_S = 8000.0
STEP_S = 0.012
CHARS_PER_TOKEN = 4
THINK_S = 8.0


@dataclass
class Simulated(One):
    """An engine and its KV cache: the beginnings of prompts that it has, the least recently used go first."""

    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    running: int = 0

    def compute(self, texts: Iterable[str]) -> tuple[int, int]:
        """Return how many tokens of a prompt the cache had and how many it lacked, which it now has."""
        found, lacked, beginning = 0, 0, 0
        for text in texts:
            beginning, tokens = hash((beginning, text)), len(text) // CHARS_PER_TOKEN
            if beginning in self.cache and not lacked:
                found += tokens
            else:
                lacked += tokens
            self.cache[beginning] = tokens
            self.cache.move_to_end(beginning)
        total = sum(self.cache.values())
        while total > CACHE_TOKENS:
            total -= self.cache.popitem(last=False)[1]
        return found, lacked


@dataclass
class Result:
    cached_ratio: float
    ttft_p95_s: float
    duration_p95_s: float
    counts: dict[str, int]


def play(affinity: Affinity, *, conversations_per_s: float, mean_turns: float, names_session: bool = False) -> Result:
    """Play 300 conversations under 20 system prompts of 3,000 characters."""
    random = Random(1)
    chooser = Chooser(Balance.LEAST, affinity, lambda: random.getrandbits(64))
    engines = [Simulated(engine_id=f"10.0.0.{at}:8000") for at in range(ENGINES)]
    queue: list[tuple[float, int, str, tuple[str, ...], int]] = []
    ends: dict[int, tuple[Simulated, int]] = {}
    number, now, found, lacked = 0, 0.0, 0, 0
    ttfts: list[float] = []
    durations: list[float] = []
    for number in range(300):
        now += random.expovariate(conversations_per_s)
        system = f"{random.randrange(20)} ".ljust(3000, "s")
        turns = 1 + int(random.expovariate(1 / mean_turns)) if mean_turns else 1
        heapq.heappush(queue, (now, number, f"c{number}", (system, f"{number}".ljust(random.randint(50, 1200))), turns))
    while queue:
        now, at, name, texts, turns = heapq.heappop(queue)
        number += 1
        if at in ends:
            engine, work = ends.pop(at)
            assert engine.work_tokens is not None
            engine.work_tokens -= work
            engine.running -= 1
            if turns:
                asked = (*texts, f"{at}".ljust(random.randint(50, 800)))
                heapq.heappush(queue, (now + random.expovariate(1 / THINK_S), number, name, asked, turns))
            continue
        chosen = chooser.choose(engines, chat(*texts), name if names_session else None, now)
        assert chosen is not None
        assert chosen.work_tokens is not None
        output, work = random.randint(50, 400), sum(map(len, texts)) // CHARS_PER_TOKEN + 256
        chosen.work_tokens += work
        chosen.running += 1
        had, not_had = chosen.compute(texts)
        found, lacked = found + had, lacked + not_had
        chosen.free_at = max(now, chosen.free_at) + not_had / PREFILL_TOKENS_PER_S
        done = chosen.free_at + output * STEP_S * (1 + chosen.running / 40)
        ttfts.append(chosen.free_at - now)
        durations.append(done - now)
        ends[number] = (chosen, work)
        answer = f"{at} answers ".ljust(output * CHARS_PER_TOKEN, "a")
        heapq.heappush(queue, (done, number, name, (*texts, answer), turns - 1))
    return Result(found / (found + lacked), p95(ttfts), p95(durations), chooser.counts)


def p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


@pytest.mark.parametrize("names_session", [False, True])
def test_conversations_find_their_prompts_cached(names_session: bool) -> None:
    without = play(Affinity.NONE, conversations_per_s=5.0, mean_turns=5.0)
    affine = play(Affinity.BOTH, conversations_per_s=5.0, mean_turns=5.0, names_session=names_session)
    assert affine.counts[Rule.SESSION if names_session else Rule.PREFIX] > sum(affine.counts.values()) * 0.9
    assert affine.cached_ratio >= without.cached_ratio + 0.15
    assert affine.ttft_p95_s <= without.ttft_p95_s / 2
    assert affine.duration_p95_s <= without.duration_p95_s * 1.05


def test_requests_that_share_nothing_more_lose_nothing() -> None:
    without = play(Affinity.NONE, conversations_per_s=20.0, mean_turns=0.0)
    affine = play(Affinity.BOTH, conversations_per_s=20.0, mean_turns=0.0)
    assert affine.cached_ratio >= without.cached_ratio
    assert affine.ttft_p95_s <= without.ttft_p95_s * 1.05
    assert affine.duration_p95_s <= without.duration_p95_s * 1.05

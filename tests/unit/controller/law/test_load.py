from dataclasses import replace

import numpy as np
import pytest

from specpilot.controller.estimation.observation import Cell, CellSums, Evidence
from specpilot.controller.law.load import Load
from specpilot.controller.tuning import Tuning

TUNING = Tuning()


def look(running: dict[str, float], tokens: dict[tuple[str, int], float], prefill: float = 0.0) -> Evidence:
    n = sum(running.values())
    cells = {Cell(int(n), int(n), 0, 0): CellSums(10.0, 0.1, 10 * n, 10 * n, 0.0, 10 * n * 50)}
    if prefill:
        cells[Cell(int(n), int(n), 0, 64)] = CellSums(10.0, 0.3, 10 * n, 10 * n, 0.0, 0.0, 10 * prefill)
    drafts = {(name, band, 0): count for (name, band), count in tokens.items()}
    return Evidence(drafts=drafts, decode_tokens=tokens, cells=cells, running=running)


def test_the_mix_follows_traffic() -> None:
    load = Load()
    load.take(look({"a": 4}, {("a", 3): 30.0, ("a", 7): 70.0}), 1.0, TUNING)
    assert load.mix == {("a", 3): pytest.approx(0.3), ("a", 7): pytest.approx(0.7)}
    for _ in range(30):
        load.take(look({"a": 4}, {("a", 0): 1.0}), 1.0, TUNING)
    assert load.mix[("a", 0)] > 0.99
    assert sum(load.mix.values()) == pytest.approx(1.0)


def test_who_is_gone_leaves_no_trace_and_who_pauses_stays() -> None:
    load = Load()
    both, one = {("a", 7): 2.0, ("b", 0): 78.0}, {("b", 0): 80.0}
    for _ in range(10):
        load.take(look({"a": 1, "b": 7}, both), 0.5, TUNING)
    load.take(look({"b": 8}, one), 0.9 * TUNING.gone_s, TUNING)
    assert load.mix["a", 7] == pytest.approx(0.025 * np.exp(-0.9 * TUNING.gone_s / TUNING.mix_time_s), rel=0.01)
    load.take(look({"b": 8}, one), 0.2 * TUNING.gone_s, TUNING)
    assert load.mix == load.running == {("b", 0): 1.0}


def test_who_cannot_be_absent_by_chance_is_gone_at_once() -> None:
    """Half of 32 requests were of a kind that has ended."""
    load = Load()
    for _ in range(10):
        load.take(look({"a": 32}, {("a", 7): 160.0, ("a", 0): 160.0}), 0.5, TUNING)
    load.take(look({"a": 32}, {("a", 0): 320.0}), 0.5, TUNING)
    assert load.mix == load.running == {("a", 0): 1.0}


def test_who_has_become_fewer_than_chance_explains_is_counted_as_last_seen() -> None:
    """Two of four requests were of a kind that ends; its last few tokens do not keep it in the mix."""
    load = Load()
    for _ in range(10):
        load.take(look({"a": 4}, {("a", 7): 20.0, ("a", 0): 20.0}), 0.5, TUNING)
    shares = []
    for _ in range(3):
        load.take(look({"a": 4}, {("a", 7): 0.4, ("a", 0): 39.6}), 0.5, TUNING)
        shares.append(load.mix["a", 7])
    assert shares[0] == pytest.approx(0.01 + 0.49 * np.exp(-0.5 / 3.0), rel=0.01)  # one snapshot may be chance
    last_seen = {("a", 0): pytest.approx(0.99), ("a", 7): pytest.approx(0.01)}
    assert load.running == last_seen
    assert load.mix == last_seen


def test_what_one_kind_gives_up_goes_to_those_that_have_become_more() -> None:
    load = Load()
    for _ in range(10):
        load.take(look({"a": 16}, {("a", 7): 144.0, ("a", 1): 16.0}), 0.5, TUNING)
    load.take(look({"a": 16}, {("a", 7): 48.0, ("a", 4): 96.0, ("a", 1): 16.0}), 0.5, TUNING)
    assert load.mix == {("a", 7): pytest.approx(0.3), ("a", 4): pytest.approx(0.6), ("a", 1): pytest.approx(0.1)}


def test_while_most_requests_of_a_class_are_cold_what_its_others_are_does_not_count() -> None:
    load = Load()
    few_found = look({"a": 16, "b": 4}, {("a", 5): 140.0, ("a", 7): 20.0, ("b", 7): 40.0})
    load.take(replace(few_found, cold={("a", 5): 100.0}), 0.5, TUNING)
    assert load.mix == {("a", 5): pytest.approx(0.8), ("b", 7): pytest.approx(0.2)}
    load.take(replace(few_found, cold={("a", 5): 70.0}), 0.5, TUNING)
    assert load.mix["a", 7] > 0
    load.take(replace(few_found, cold={("a", 5): 100.0}), 0.5, TUNING)
    assert load.mix == {("a", 5): pytest.approx(0.8), ("b", 7): pytest.approx(0.2)}


@pytest.mark.parametrize(("requests", "times"), [(8, 1.8), (16, 1.5), (64, 1.5)])
def test_chance_alone_leaves_the_mean_in_place(requests: int, times: float) -> None:
    """Requests last three snapshots, each of a kind with probability 1/4; compared with the mean alone."""

    def spread(tuning: Tuning) -> float:
        rng, load, shares = np.random.default_rng(1), Load(), []
        of_kind, age = rng.random(requests) < 0.25, rng.integers(0, 3, requests)
        for _ in range(1000):
            of_kind, age = np.where(age == 2, rng.random(requests) < 0.25, of_kind), (age + 1) % 3
            drawn = float(of_kind.sum())
            tokens = {("a", 7): 10 * drawn + 1e-9, ("a", 0): 10 * (requests - drawn) + 1e-9}
            load.take(look({"a": requests}, tokens), 0.5, tuning)
            shares.append(load.mix.get(("a", 7), 0.0))
        assert np.mean(shares[20:]) == pytest.approx(0.25, abs=0.03)
        return float(np.std(shares[20:]))

    assert spread(TUNING) <= times * spread(replace(TUNING, gone_nats=np.inf))


def test_looks_at_other_engines_tell_nothing_of_a_change() -> None:
    """Two engines with different traffic; one scrape fails."""

    def taken(*, of_same_engines: bool) -> float:
        load = Load()
        for _ in range(10):
            load.take(look({"a": 16}, {("a", 7): 80.0, ("a", 0): 80.0}), 0.5, TUNING)
        load.take(look({"a": 16}, {("a", 7): 8.0, ("a", 0): 152.0}), 0.5, TUNING, of_same_engines=of_same_engines)
        return load.mix["a", 7]

    keep = np.exp(-0.5 / 3.0)
    assert taken(of_same_engines=True) == pytest.approx(0.05)
    assert taken(of_same_engines=False) == pytest.approx(keep * 0.5 + (1 - keep) * 0.05)


def test_the_requests_of_all_engines_of_a_pool_count() -> None:
    """A snapshot of four engines with 8 requests each has the weight of one of an engine with 32."""
    load, steps = Load(), 10.0
    cells = {Cell(8, 8, 0, 0): CellSums(4 * steps, 0.4, 320.0, 320.0)}
    for shares in ((160.0, 160.0), (64.0, 256.0)):
        tokens = {("a", 7): shares[0], ("a", 0): shares[1]}
        drafts = {(name, band, 0): count for (name, band), count in tokens.items()}
        load.take(Evidence(drafts=drafts, decode_tokens=tokens, cells=cells, running={"a": 32}), 0.5, TUNING)
    assert load.mix["a", 7] == pytest.approx(0.2)


def test_prefill_and_context_are_those_of_the_newest_steps() -> None:
    load = Load()
    load.take(look({"a": 4}, {("a", 3): 30.0}, prefill=60.0), 1.0, TUNING)
    assert load.prefill == ((0.5, 0.0), (0.5, pytest.approx(60.0)))
    assert load.context_tokens == pytest.approx(50.0)
    assert load.decodes == 4


def test_context_is_known_where_every_step_prefills() -> None:
    load = Load()
    for context in (50.0, 90.0):  # the second snapshot replaces the first
        cells = {Cell(4, 4, 0, 64): CellSums(10.0, 0.3, 40.0, 40.0, 0.0, 40 * context, 600.0)}
        load.take(Evidence(drafts={("a", 3, 0): 40.0}, decode_tokens={("a", 3): 40.0}, cells=cells), 1.0, TUNING)
        assert load.context_tokens == pytest.approx(context)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_change_of_k_leaves_the_mix_where_traffic_answers_to_it_as_far_as_is_taken(beta: float) -> None:
    """AL rises from 1 to 6 for one kind of two; the running requests follow by AL^-beta."""

    def taken(length: float) -> Load:
        load, part = Load(), length**-beta
        decodes = {("a", 7, 0): 100 * part, ("a", 0, 0): 100.0}
        tokens = {("a", 7): 100 * part * length, ("a", 0): 100.0}
        load.take(Evidence(drafts=decodes, decode_tokens=tokens), 0.5, replace(TUNING, answer_ratio=beta))
        return load

    assert taken(6.0).mix == {key: pytest.approx(share) for key, share in taken(1.0).mix.items()}
    assert taken(6.0).running["a", 7] == pytest.approx(6**-beta / (6**-beta + 1))

"""Acceptance after a spell in which a request beyond the drafter's length limit kept vLLM from drafting for anybody.

Finds for each way the accepted and verified draft tokens of the other requests after the spell: at K = 0 with the
drafter on and no such request (`whole`), with one (`caught up`), and with one while rows are forgotten that should
catch up, and so is what a step prefilled or verified (`hole`). Some begin in the spell. Text and positions are the same
in all three.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from vllm import SamplingParams

from specpilot.bench.gpu_engine.engine import chat_text
from specpilot.engine_adapter.evidence.meter import Draft
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.v1.backlog import Backlog
from tests.support.engine_program import finish, head, replies, start
from tests.support.k_tables import table
from tests.support.stack import prompts

BEGIN, SPELL, AFTER, K = 24, 128, 100, 7
REQUESTS, LATER = 18, 5
SHORT, LONG = 512, 768
"""Tokens that the drafter and the target can read."""
TOKENS = 768
"""A step's, so the long prompt fits into one. As many rows may wait: they are full twice within the spell."""

DARK, LIT = (table(default=k) for k in (0, K))


class Watch:
    """Steers K of the scheduler by step, forgets rows where `way` is "hole", and notes what happens."""

    def __init__(self, scheduler: Any) -> None:
        self.way = ""
        self.step = 0
        self.drafts: list[Draft] = []
        self.seen: Counter[str] = Counter()
        self._planner = scheduler.steps._planner
        self._plan, self._commit = scheduler.steps._planner.plan, scheduler.meter.commit
        self._catch_up, self._keep = Backlog.catch_up, Backlog.keep
        scheduler.steps._planner.plan, scheduler.meter.commit = self._planned, self._noted
        scheduler.control.table = self._table

        def caught_up(backlog: Backlog, runner: Any, state: Any, wanted: Any) -> None:
            self._caught_up(backlog, runner, state, wanted)

        def kept(backlog: Backlog, runner: Any, state: Any, rejected: Any, deferred: Any) -> None:
            self._kept(backlog, runner, state, rejected, deferred)

        Backlog.catch_up, Backlog.keep = caught_up, kept  # type: ignore[method-assign]

    def begin(self, way: str) -> None:
        self.way, self.step = way, 0
        self._planner.catch_up.least_width = 1 if way == "whole" else 0
        self._planner.catch_up.reads_all = way == "whole"
        self.drafts.clear()
        self.seen.clear()

    def found(self) -> dict[str, Any]:
        return {
            "accepted": sum(draft.accepted for draft in self.drafts),
            "verified": sum(draft.k for draft in self.drafts),
            "seen": dict(self.seen),
        }

    def _table(self, _now: float) -> KTable:
        return DARK if BEGIN < self.step <= BEGIN + SPELL else LIT

    def _planned(self, states: list[DraftState], table: Any, **about: Any) -> StepPlan:
        self.seen["undraftable"] += not about["can_draft"]
        return self._plan(states, table, **about)  # type: ignore[no-any-return]

    def _noted(self, shape: Any, seconds: float, context: int, outcome: Any) -> None:
        if self.step > BEGIN + SPELL:
            self.drafts.extend(outcome.drafts)
        self._commit(shape, seconds, context, outcome)

    def _caught_up(self, backlog: Backlog, runner: Any, state: Any, wanted: Any) -> None:
        is_needed = not backlog.rows.by_request().keys().isdisjoint(wanted)
        self.seen["caught up"] += is_needed
        most = max((len(backlog.rows.by_request().get(request, ())) for request in wanted), default=0)
        self.seen["most rows of one"] = max(self.seen["most rows of one"], most)
        if self.way == "hole" and is_needed:
            backlog.rows.drop()
        self._catch_up(backlog, runner, state, wanted)

    def _kept(self, backlog: Backlog, runner: Any, state: Any, rejected: Any, deferred: Any) -> None:
        is_plain = state.spec_decode_common_attn_metadata.max_query_len == 1
        self.seen["kept of more than single decodes"] += not is_plain
        self.seen["kept of rejected drafts"] += rejected is not None and int(rejected.sum()) > 0
        if self.way != "hole" or is_plain:
            self._keep(backlog, runner, state, rejected, deferred)


Serve = Callable[[Any, Watch, list[str]], dict[str, list[int]]]
"""Serves texts on an engine while a `Watch` receives each step; returns the token ids of the replies."""


def tell(kind: str, serve: Serve, requests: int, drafter: dict[str, Any], **options: Any) -> None:
    """Let an engine with the scheduler of `kind` serve as many requests in each of the ways, and report.

    `drafter` and `options` are the engine's besides the demo pair's. Ends the process.
    """
    os.environ["SPECPILOT_ENGINE_BACKLOG_MIB"] = "2.25"  # 768 rows of 3 x 256 numbers
    llm = start(head("peagle", K, **drafter), is_async=kind == "async", enable_prefix_caching=False, **options)
    watch = Watch(llm.llm_engine.engine_core.engine_core.scheduler)
    texts = [chat_text(llm, item["messages"]) for _, item in prompts(requests)[:requests]]
    found: dict[str, Any] = {"pass": options["max_num_batched_tokens"]}
    for way in ("warm-up", "whole", "caught up", "hole"):
        watch.begin(way)
        ids = serve(llm.llm_engine, watch, texts)
        found[way] = watch.found() | {"ids": ids}
    finish(found)


def _serve(engine: Any, watch: Watch, texts: list[str]) -> dict[str, list[int]]:
    """Return the token ids of the replies, without that of the request that is too long."""
    for number in range(LATER, REQUESTS):
        add(engine, str(number), texts[number], SPELL + AFTER + 3 * BEGIN)

    def arrive(step: int) -> None:
        if watch.step == BEGIN + SPELL // 4:
            for number in range(LATER):
                add(engine, str(number), texts[number], SPELL + AFTER)
        if watch.step == BEGIN and watch.way in ("caught up", "hole"):
            add(engine, "long", {"prompt_token_ids": [11 + i % 97 for i in range(SHORT)]}, SPELL)
        watch.step = step

    ids = replies(engine, arrive)
    ids.pop("long", None)
    return ids


def add(engine: Any, name: str, prompt: Any, tokens: int) -> None:
    engine.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))


if __name__ == "__main__":
    tell(
        sys.argv[1],
        _serve,
        REQUESTS,
        {"max_model_len": SHORT},
        max_num_batched_tokens=TOKENS,
        max_num_seqs=REQUESTS + 1,
        max_model_len=LONG,
        num_gpu_blocks_override=100,
    )

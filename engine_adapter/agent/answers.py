"""Answers a controller's questions about K from the engine's own estimates (`policy.questions`).

Runs on the link's thread, in short holds of Python's lock, and reads what the other threads replace as a whole. An
engine answers each question once, also one that it cannot answer.

Engines answer because they know their batch, new requests and estimates exactly. Exporting forty price series, from
which the controller chose again at forty loads in every tick, was an estimate for one engine and the largest part of
the controller. With 256 requests an explanation takes 29 ms of Python, a forecast 6 and K by load 30, in holds of the
lock of 1.4 ms at most in the median of 30 answers (1.7 the worst).
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from specpilot.engine_adapter.law.batch_choice import Estimates, Requirements
from specpilot.engine_adapter.law.contexts import Contexts
from specpilot.engine_adapter.law.forecast import Decodes, chosen_k, fixed_k, k_by_load, loads, predicted
from specpilot.policy.clock import Clock
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.questions import Answer, Kind, Question
from specpilot.policy.schedule import Guidance

logger = logging.getLogger("vllm.specpilot")


class Answers:
    """Answers for the engine of `scheduler`; `between` is called between two parts of a computation."""

    def __init__(self, scheduler: Any, clock: Clock, between: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._between = between

    def answer(self, question: Question) -> Answer:
        """Return the answer; if it cannot be given, `unknown` says why."""
        control, now = self._scheduler.control, self._clock.monotonic()
        override = control.override(now)
        facts: dict[str, Any] = {
            "question_id": question.question_id,
            "engine_id": control.engine_id,
            "version": control.version,
            "source": control.source(now).value,
            "cause": override.cause.value if override is not None else None,
        }
        try:
            return Answer(**facts, **self._prediction(question))
        except Exception as error:
            logger.exception("SpecPilot: a question of the controller was not answered")
            return Answer(**facts, unknown=f"the engine failed at it: {type(error).__name__}")

    def _prediction(self, question: Question) -> dict[str, Any]:
        """Return the further fields of the answer."""
        scheduler, law = self._scheduler, self._scheduler.law
        guidance: Guidance = question.guidance or law.guidance
        requirements = Requirements.of(guidance, law.k_max)
        is_running, estimates = scheduler.has_unfinished_requests(), law.estimates
        if estimates is not None:
            estimates = estimates.apart(self._between)
        contexts = estimates.contexts if estimates is not None else Contexts()
        # The list is replaced as a whole by each step; after the last step it stays.
        batch = Counter(
            Decodes(
                state.traffic_class if state.traffic_class in guidance.classes else DEFAULT_CLASS,
                contexts.groups([state.acceptance.code], [state.context])[0],
                state.chosen_k,
            )
            for state in scheduler.steps.decoding
        )
        self._between()
        decodes = batch.total() if is_running else 0
        if question.kind not in tuple(Kind):
            unknown = f"this engine's version knows no question {question.kind!r}"
        elif estimates is None:
            unknown = "too few steps were measured, or no traffic was seen yet"
        elif not batch or (question.kind == Kind.EXPLAIN and not is_running):
            unknown = "nothing runs: K depends on the load"
        elif question.kind == Kind.K_BY_LOAD:
            numbers = loads(scheduler.control.max_running, law.k_max, scheduler.graphs)
            rows, keeps_up_to = k_by_load(estimates, requirements, batch, numbers)
            return {"decodes": decodes, "k_by_load": rows, "keeps_up_to": keeps_up_to}
        else:
            return {"decodes": decodes, **self._explained(question, guidance, requirements, estimates, batch)}
        return {"decodes": decodes, "unknown": unknown}

    def _explained(
        self,
        question: Question,
        guidance: Guidance,
        requirements: Requirements,
        estimates: Estimates,
        batch: Counter[Decodes],
    ) -> dict[str, Any]:
        law, between = self._scheduler.law, self._between
        in_force = {group: group.k for group in batch}
        override = guidance.override if question.guidance is not None else None
        if override is None:
            chosen = chosen_k(estimates, requirements, batch)
        elif override.k is None:
            chosen = in_force
        else:
            chosen = fixed_k(guidance.fixed_k(override.k, law.k_max, is_bounded=override.is_bounded), batch)
        between()
        static_k = law.own_static_k if guidance.static_k is None else guidance.static_k
        ways = {"in_force": in_force, "chosen": chosen, "static": fixed_k(guidance.fixed_k(static_k, law.k_max), batch)}
        predictions: dict[str, Any] = {}
        for name, k_of in ways.items():
            predictions[name] = predicted(estimates, requirements, batch, k_of)
            between()
        groups = tuple(law.groups(between)) if question.guidance is None else ()
        measured = self._scheduler.latencies.measured_ms()
        return {**predictions, "groups": groups, "tpot_ms": measured}

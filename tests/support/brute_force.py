"""Every step of a running scheduler, read at vLLM's own boundary and counted the slow way, beside what was exported.

Reads what goes into and comes out of vLLM's own `update_from_output`, `update_draft_token_ids` and worker, draft by
draft, and keeps its own idea of who decodes. It shares no counting code with the adapter.
"""

import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.spec_decode.dflash import DFlashProposer
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.steps import Steps
from specpilot.engine_adapter.vllm.v1 import backlog
from specpilot.policy import engine_metrics as names
from tests.support.k_tables import k_of

Counts = dict[str, dict[str, float]]
Shape = tuple[int, int, int, int, int, bool, int, int, int]
"""Decodes, verified tokens, slots, prefilled tokens, positions read, whether all decodes are alike, context of the
draft tokens, passes after the drafter's first one, context."""


class BruteForce:
    """Counts the steps of `scheduler` from its creation on; `seen` says what happened at all.

    `shapes` are those of the steps as counted here, `noted` as the adapter's meter has them.
    """

    def __init__(self, scheduler: Any) -> None:
        self.seen: Counter[str] = Counter()
        self.shapes: list[Shape] = []
        self.noted: list[Shape] = []
        self._scheduler = scheduler
        speculative = scheduler.vllm_config.speculative_config
        self._is_sequential = not speculative.parallel_drafting and speculative.method != "dflash"
        self._counts: dict[str, Counter[str]] = {}
        self._decoding: set[str] = set()
        self._allowed: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._chosen: dict[str, int] = {}  # the band in which the draft to verify next was given its K
        self._begins: dict[str, float] = {}  # the accepts that a request begins with, beside 3 trials
        self._history: dict[str, list[tuple[int, int]]] = {}  # accepted and tried tokens of each verified draft
        self._judged: set[str] = set()  # whose drafts vLLM did not drop in the step that ends
        self._known: dict[str, int] = {}  # how many of these were known when the request was scheduled last
        self._planned: list[str] = []
        self._first_refused: set[str] = set()  # whose first draft their grammar refused whole, in this step
        self._steps: dict[int, dict[str, Any]] = {}
        self._watch_beginnings()
        self._watch_scheduler()
        self._watch_meter(scheduler.meter)
        if scheduler.use_v2_model_runner:
            import_module("tests.support.watched_v2").watch(self._steps, self.seen, scheduler)
        else:
            self._watch_worker()

    def counts(self) -> Counts:
        """Return the sums by metric and labels, zeros left out; `seen` then says how many steps' shapes differ."""
        self.seen["steps"] = len(self.shapes)
        self.seen["other_shapes"] = abs(len(self.shapes) - len(self.noted)) + sum(
            own != theirs for own, theirs in zip(self.shapes, self.noted, strict=False)
        )
        return {name: {key: count for key, count in by.items() if count} for name, by in self._counts.items()}

    def _add(self, metric: str, *labels: object, by: float = 1) -> None:
        self._counts.setdefault(metric, Counter())[",".join(map(str, labels))] += by

    def _watch_scheduler(self) -> None:
        after_schedule, update = Scheduler._update_after_schedule, Scheduler.update_from_output
        draft, preempt = Scheduler.update_draft_token_ids, Scheduler._preempt_request
        count_draft = Scheduler.make_spec_decoding_stats

        def schedule(scheduler: Any, output: Any) -> None:
            after_schedule(scheduler, output)
            self._scheduled(output)

        def take_drafts(scheduler: Any, drafts: Any) -> None:
            given = {key: list(tokens) for key, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=False)}
            draft(scheduler, drafts)
            for key, tokens in given.items():
                request = scheduler.requests.get(key)
                if request is not None and not request.is_prefill_chunk and len(request.spec_token_ids) < len(tokens):
                    self._allowed[key] = len(request.spec_token_ids)

        def finish(scheduler: Any, output: Any, result: Any) -> Any:
            invalid = output.num_invalid_spec_tokens or {}  # the asynchronous scheduler's way to cut by the grammar
            drafts = {
                key: (len(tokens) - invalid.get(key, 0), key in invalid)
                for key, tokens in output.scheduled_spec_decode_tokens.items()
            }
            labels = {key: self._label(key) for key in output.num_scheduled_tokens}
            sampled = {
                key: len(result.sampled_token_ids[index])
                for key, index in result.req_id_to_index.items()
                if result.sampled_token_ids
            }
            self._judged.clear()
            outputs = update(scheduler, output, result)
            if output.num_scheduled_tokens:
                delivered = {
                    item.request_id: len(item.new_token_ids) for part in outputs.values() for item in part.outputs
                }
                self._step(output, sampled, drafts, delivered, labels)
            return outputs

        def note_draft(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self._judged.add(kwargs.get("request_id", args[-1] if args else ""))
            return count_draft(scheduler, *args, **kwargs)

        def count_preemption(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            self.seen["preemptions"] += 1
            preempt(scheduler, *args, **kwargs)

        Scheduler._update_after_schedule = schedule
        Scheduler.update_draft_token_ids = take_drafts
        Scheduler.update_from_output = finish
        Scheduler._preempt_request = count_preemption
        Scheduler.make_spec_decoding_stats = note_draft

    def _scheduled(self, output: Any) -> None:
        # Still the table, and the histories, by which the previous step's requests were given their next K.
        for key in self._planned:
            band = self._chosen[key] = self._band(key)
            self._due[key] = k_of(self._scheduler.steps.table, self._label(key), band)
        self._planned = list(output.num_scheduled_tokens)
        anew = _begins_anew(output)
        allowed = {key: self._allowed.pop(key, None) for key in self._planned}
        self._first_refused.clear()
        for key in self._planned:
            history = self._history.setdefault(key, [])
            is_decode = key in self._decoding and key not in anew
            if allowed[key] == 0 and is_decode and not output.scheduled_spec_decode_tokens.get(key):
                if not history:
                    self._first_refused.add(key)
                history.append((0, 1))
            self._known[key] = len(history)
        self._steps[id(output)] = {
            "due": {key: self._due.get(key, 0) for key in self._planned},
            "bands": {key: self._chosen.get(key) for key in self._planned},
            "allowed": allowed,
            "read": 0,
            "slots": 0,
            "width": 0,
            "contexts": {key: self._scheduler.requests[key].num_computed_tokens for key in self._planned},
        }

    def _watch_meter(self, meter: Any) -> None:
        commit = meter.commit

        def note(shape: Any, seconds: float, context: int, outcome: Any) -> None:
            self.noted.append((*shape, context))
            commit(shape, seconds, context, outcome)

        meter.commit = note

    def _watch_worker(self) -> None:
        catch_up, forward = backlog.Backlog.catch_up, backlog.Backlog._forward
        keep = backlog.Backlog.keep_plain
        output: Any = None

        def catch_up_in(own: Any, runner: Any, state: Any, wanted: Any) -> None:
            nonlocal output
            output = state.scheduler_output
            held = len(own.rows)
            resumed = output.scheduled_cached_reqs.resumed_req_ids
            self.seen["rows_of_ended"] += len(own.rows.by_request().keys() - runner.requests.keys())
            self.seen["rows_of_resumed"] += len(own.rows.by_request().keys() & resumed)
            self.seen["resumed"] += len(resumed)
            catch_up(own, runner, state, wanted)
            self.seen["rows_left_waiting"] += 0 < len(own.rows) < held

        def run(own: Any, tokens: Any, *arguments: Any) -> None:
            self._steps[id(output)]["read"] += len(tokens)
            self.seen["caught_up_rows"] += len(tokens)
            forward(own, tokens, *arguments)

        def keep_plain(own: Any, runner: Any, state: Any) -> None:
            self.seen["plain_steps"] += 1
            keep(own, runner, state)

        def watch_layout(proposer: Any) -> None:
            set_inputs = proposer.set_inputs_first_pass

            def lay_out(drafter: Any, *arguments: Any, **named: Any) -> Any:
                batch = named["cad"].batch_size()
                self._steps[id(output)]["width"] = drafter.num_speculative_tokens
                self._steps[id(output)]["slots"] = batch * drafter.num_speculative_tokens
                is_subset = batch < len(output.num_scheduled_tokens)
                self.seen["subsets"] += is_subset
                self.seen["subsets_with_rejected"] += is_subset and named["num_rejected_tokens_gpu"] is not None
                return set_inputs(drafter, *arguments, **named)

            proposer.set_inputs_first_pass = lay_out

        for proposer in (SpecDecodeBaseProposer, DFlashProposer):
            watch_layout(proposer)
        backlog.Backlog.catch_up = catch_up_in  # type: ignore[method-assign]
        backlog.Backlog.keep_plain = keep_plain  # type: ignore[method-assign]
        backlog.Backlog._forward = run  # type: ignore[method-assign]

    def _band(self, key: str) -> int:
        """The band of a request, which began where the adapter let it begin, by its drafts before it was scheduled."""
        accepts, tried = self._begins[key], 3.0
        for accepted, of in self._history[key][: self._known[key]]:  # in this order: one half is an edge, also rounded
            accepts, tried = 0.9 * accepts + accepted, 0.9 * tried + of
        p = accepts / tried
        return sum(p >= edge for edge in (0.08, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92))

    def _watch_beginnings(self) -> None:
        init = DraftState.__init__

        def begin(state: Any, request_id: str, kind: Any, at: float, *more: int) -> None:
            self._begins.setdefault(request_id, 3.0 * at)
            init(state, request_id, kind, at, *more)

        begin_anew = Steps._restart_unverified

        def again(steps: Any) -> None:
            begin_anew(steps)
            for key, state in steps.states.items():
                # Nothing was verified before this step: the request begins where its kind does by now.
                if not self._history.get(key) or key in self._first_refused:
                    self._begins[key] = state.acceptance.accepts

        DraftState.__init__ = begin  # type: ignore[assignment, method-assign]
        Steps._restart_unverified = again  # type: ignore[method-assign]

    def _label(self, key: str) -> str:
        request = self._scheduler.requests.get(key)
        name = request.sampling_params.extra_args["traffic_class"] if request is not None else ""
        return name if name in self._scheduler.steps.table.k_of else "default"

    def _step(
        self,
        output: Any,
        sampled: dict[str, int],
        drafts: dict[str, tuple[int, bool]],
        delivered: dict[str, int],
        labels: dict[str, str],
    ) -> None:
        noted = self._steps.pop(id(output))
        anew = _begins_anew(output)
        self._decoding -= anew
        decodes = [key for key in output.num_scheduled_tokens if key in self._decoding]
        for key in decodes:
            k, is_invalid = drafts.get(key, (0, False))
            if key in self._judged:
                is_cut = is_invalid or noted["allowed"][key] == k
                self._history[key].append((sampled[key] - 1, min(sampled[key], k + is_cut)))
            if not delivered.get(key):
                self.seen["undelivered"] += 1
                continue
            accepted = sampled[key] - 1
            label, band = labels[key], noted["bands"][key]
            self._add(names.DRAFTS, label, band, k)
            self._add(names.DECODE_TOKENS, label, band, by=delivered[key])
            is_probe = k > noted["due"][key]
            self._add(names.PROBES, label, by=is_probe)
            is_refused = is_invalid or noted["allowed"][key] == k
            for position in range(1, k + 1):
                if position <= accepted + 1:
                    self._add(names.TRIALS, band, position)
                if position <= accepted:
                    self._add(names.ACCEPTS, band, position)
            if is_refused and accepted == k:
                self._add(names.TRIALS, band, k + 1)
            self.seen["probes"] += is_probe
            self.seen["refused"] += is_refused
            self.seen["cut_by_stop"] += delivered[key] < accepted + 1
            self.seen["undrafted"] += k == 0
        self._decoding |= {key for key in output.num_scheduled_tokens if delivered.get(key)}
        self._count_step(output, decodes, noted)

    def _count_step(self, output: Any, decodes: list[str], noted: dict[str, Any]) -> None:
        lengths = [output.num_scheduled_tokens[key] for key in decodes]
        verified, slots, read = sum(lengths), noted["slots"], noted["read"]
        prefill = sum(output.num_scheduled_tokens.values()) - verified
        is_uniform, contexts = len(set(lengths)) <= 1, noted["contexts"]
        of_drafts = sum((output.num_scheduled_tokens[key] - 1) * contexts[key] for key in decodes)
        whole, passes = sum(contexts.values()), max(0, noted["width"] - 1) if self._is_sequential else 0
        self.shapes.append((len(decodes), verified, slots, prefill, read, is_uniform, of_drafts, passes, whole))
        with_prefill = "prefill" if decodes else "prompt"
        kind = with_prefill if prefill else "catch_up" if read else "decode"
        self._add(names.STEPS, kind)
        self._add(names.STEP_DECODES, kind, by=len(decodes))


def _begins_anew(output: Any) -> set[str]:
    """The requests that a step prefills from the beginning; on model runner V2 resumed ones come as new."""
    return {item.req_id for item in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids


def exported(expected: Counts, page: Callable[[], str], seconds: float = 5.0) -> Counts:
    """Return the metrics of these names on the adapter's `page` once they agree, or what they are after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found: Counts = {name: {} for name in expected}
        for family in text_string_to_metric_families(page()):
            for sample in family.samples:
                if sample.name in found and sample.value:
                    whose = names.LABEL_MODEL, names.LABEL_ENGINE
                    labels = [value for key, value in sample.labels.items() if key not in whose]
                    found[sample.name][",".join(labels)] = sample.value
        if found == expected or time.monotonic() > end:
            return found
        time.sleep(0.2)

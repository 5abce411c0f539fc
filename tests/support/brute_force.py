"""Every step of a running scheduler, read at vLLM's own boundary and counted the slow way, beside what was exported.

Reads what goes into and comes out of vLLM's own `update_from_output`, `update_draft_token_ids` and worker, draft by
draft, and keeps its own idea of who decodes. It shares no counting code with the adapter.
"""

import time
from collections import Counter
from typing import Any

from prometheus_client import REGISTRY
from vllm.v1.core.sched.scheduler import Scheduler

from engine_adapter import backlog
from engine_adapter.measure import rounded
from policy import engine_metrics as names

Counts = dict[str, dict[str, float]]


class BruteForce:
    """Counts the steps of `scheduler` from its creation on; `seen` says what happened at all."""

    def __init__(self, scheduler: Any) -> None:
        self.seen: Counter[str] = Counter()
        self._scheduler = scheduler
        self._counts: dict[str, Counter[str]] = {}
        self._decoding: set[str] = set()
        self._allowed: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._planned: list[str] = []
        self._steps: dict[int, dict[str, Any]] = {}
        self._watch_scheduler()
        self._watch_worker()

    def counts(self) -> Counts:
        """Return the sums by metric and labels, zeros left out."""
        return {name: {key: count for key, count in by.items() if count} for name, by in self._counts.items()}

    def _add(self, metric: str, *labels: object, by: float = 1) -> None:
        self._counts.setdefault(metric, Counter())[",".join(map(str, labels))] += by

    def _watch_scheduler(self) -> None:
        after_schedule, update = Scheduler._update_after_schedule, Scheduler.update_from_output
        draft, preempt = Scheduler.update_draft_token_ids, Scheduler._preempt_request

        def schedule(scheduler: Any, output: Any) -> None:
            after_schedule(scheduler, output)
            # Still the table under which the previous step's requests were given their next K.
            self._due |= {key: scheduler.steps.table.k(self._label(key), 1) for key in self._planned}
            self._planned = list(output.num_scheduled_tokens)
            self._steps[id(output)] = {
                "due": {key: self._due.get(key, 0) for key in self._planned},
                "allowed": {key: self._allowed.pop(key, None) for key in output.num_scheduled_tokens},
                "read": 0,
            }

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
            outputs = update(scheduler, output, result)
            if output.num_scheduled_tokens:
                delivered = {
                    item.request_id: len(item.new_token_ids) for part in outputs.values() for item in part.outputs
                }
                self._step(output, sampled, drafts, delivered, labels)
            return outputs

        def count_preemption(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            self.seen["preemptions"] += 1
            preempt(scheduler, *args, **kwargs)

        Scheduler._update_after_schedule = schedule
        Scheduler.update_draft_token_ids = take_drafts
        Scheduler.update_from_output = finish
        Scheduler._preempt_request = count_preemption

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

        backlog.Backlog.catch_up = catch_up_in  # type: ignore[method-assign]
        backlog.Backlog.keep_plain = keep_plain  # type: ignore[method-assign]
        backlog.Backlog._forward = run  # type: ignore[method-assign]

    def _label(self, key: str) -> str:
        request = self._scheduler.requests.get(key)
        name = request.sampling_params.extra_args["traffic_class"] if request is not None else ""
        return name if name in self._scheduler.steps.table.rows else "default"

    def _step(
        self,
        output: Any,
        sampled: dict[str, int],
        drafts: dict[str, tuple[int, bool]],
        delivered: dict[str, int],
        labels: dict[str, str],
    ) -> None:
        noted = self._steps.pop(id(output))
        anew = {item.req_id for item in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        self._decoding -= anew
        decodes = [key for key in output.num_scheduled_tokens if key in self._decoding]
        self.seen["padded"] += sum(key not in self._decoding for key in drafts)  # placeholders that nobody drafted
        for key in decodes:
            if not delivered.get(key):
                self.seen["undelivered"] += 1
                continue
            k, is_invalid = drafts.get(key, (0, False))
            accepted = sampled[key] - 1
            label = labels[key]
            self._add(names.DRAFTS, label, k)
            self._add(names.DECODE_TOKENS, label, by=delivered[key])
            is_probe = k > noted["due"][key]
            self._add(names.PROBES, label, by=is_probe)
            is_refused = is_invalid or noted["allowed"][key] == k
            for position in range(1, k + 1):
                if position <= accepted + 1:
                    self._add(names.TRIALS, label, position)
                if position <= accepted:
                    self._add(names.ACCEPTS, label, position)
            if is_refused and accepted == k:
                self._add(names.TRIALS, label, k + 1)
            self.seen["probes"] += is_probe
            self.seen["refused"] += is_refused
            self.seen["cut_by_stop"] += delivered[key] < accepted + 1
            self.seen["undrafted"] += k == 0
        verified = sum(output.num_scheduled_tokens[key] for key in decodes)
        cell = (rounded(len(decodes)), rounded(verified), output.num_spec_tokens_to_schedule)
        if len(decodes) < len(output.num_scheduled_tokens):
            self._add(names.PREFILL_STEPS)
        elif noted["read"]:
            octave = max(power for power in (1, 2, 4, 8, 16, 32) if power <= len(decodes))
            catch_up = (octave, output.num_spec_tokens_to_schedule)
            self._add(names.CATCH_UP_STEPS, *catch_up)
            self._add(names.CATCH_UP_STEP_DECODES, *catch_up, by=len(decodes))
            self._add(names.CATCH_UP_STEP_VERIFIED, *catch_up, by=verified)
            self._add(names.CATCH_UP_STEP_READ, *catch_up, by=noted["read"])
        else:
            self._add(names.STEPS, *cell)
            self._add(names.STEP_DECODES, *cell, by=len(decodes))
            self._add(names.STEP_VERIFIED, *cell, by=verified)
        self._decoding |= {key for key in output.num_scheduled_tokens if delivered.get(key)}


def exported(expected: Counts, seconds: float = 5.0) -> Counts:
    """Return the adapter's metrics of the same names once they agree, or what they are after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found: Counts = {name: {} for name in expected}
        for family in REGISTRY.collect():
            for sample in family.samples:
                if sample.name in found and sample.value:
                    labels = [value for key, value in sample.labels.items() if key != names.LABEL_MODEL]
                    found[sample.name][",".join(labels)] = sample.value
        if found == expected or time.monotonic() > end:
            return found
        time.sleep(0.2)

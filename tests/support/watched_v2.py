"""The worker's part of `tests.support.brute_force` on model runner V2: what a step's speculator read and laid out."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator

from specpilot.engine_adapter.vllm.v2 import backlog, proposal
from specpilot.engine_adapter.vllm.v2.parallel_speculator import ParallelEagleSpeculator


def watch(steps: Mapping[int, dict[str, Any]], seen: Counter[str], scheduler: Any) -> None:
    """Note in `steps`, by the id of the scheduler's output, what is read and laid out; in `seen` what happened."""
    execute_model = GPUModelRunner.execute_model
    catch_up, forward, keep = backlog.Backlog.catch_up, backlog.Backlog._forward, backlog.Backlog.keep
    chosen = proposal.chosen
    output: Any = None

    def execute(runner: Any, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal output
        output = scheduler_output
        return execute_model(runner, scheduler_output, *arguments, **named)

    def catch_up_in(own: Any, step: Any, wanted: Any) -> None:
        held, waiting = len(own.rows), own.rows.by_request().keys()
        anew = {request.req_id for request in output.scheduled_new_reqs}
        seen["rows_of_ended"] += len(waiting - scheduler.requests.keys())
        seen["rows_of_resumed"] += len(waiting & anew)
        seen["resumed"] += sum(
            len(request.prefill_token_ids) > request.prompt_len for request in output.scheduled_new_reqs
        )
        catch_up(own, step, wanted)
        seen["rows_left_waiting"] += 0 < len(own.rows) < held

    def run(own: Any, step: Any, part: Any, tokens: Any, *more: Any, **named: Any) -> None:
        steps[id(output)]["read"] += len(tokens)
        seen["caught_up_rows"] += len(tokens)
        forward(own, step, part, tokens, *more, **named)

    def keep_noting(own: Any, step: Any, deferred: Any) -> None:
        seen["plain_steps"] += step.batch.num_tokens == step.batch.num_reqs
        seen["deferred"] += len(deferred)
        keep(own, step, deferred)

    def choose(speculator: Any, given: Any, places: Any, cut: int) -> Any:
        seen["subsets"] += 1
        seen["subsets_with_rejected"] += bool(given["num_rejected"].any())
        return chosen(speculator, given, places, cut)

    def laid_out(run_head: Any) -> Any:
        def lay_out(speculator: Any, num_reqs: int, *arguments: Any, **named: Any) -> Any:
            if id(output) in steps:
                steps[id(output)]["width"] = output.num_spec_tokens_to_schedule
                steps[id(output)]["slots"] = num_reqs * output.num_spec_tokens_to_schedule
            return run_head(speculator, num_reqs, *arguments, **named)

        return lay_out

    GPUModelRunner.execute_model = execute
    TargetDependentARSpeculator._prefill = laid_out(TargetDependentARSpeculator._prefill)
    ParallelEagleSpeculator._draft = laid_out(ParallelEagleSpeculator._draft)  # type: ignore[method-assign]
    backlog.Backlog.catch_up = catch_up_in  # type: ignore[method-assign]
    backlog.Backlog._forward = run  # type: ignore[method-assign]
    backlog.Backlog.keep = keep_noting  # type: ignore[method-assign]
    proposal.chosen = choose

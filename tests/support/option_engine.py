"""A real engine with given options of vLLM's, stepped by hand: K changes between steps, the engine pauses, LoRA mixes.

Run as a program with one JSON argument; it prints one JSON object: the token ids of each reply, and what happened.
Options that vLLM or the adapter refuses end it with that error.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

import numpy as np
from safetensors.numpy import save_file

from specpilot.bench.adapter.engine_worker import runner_of
from specpilot.policy.schedule import KRange, Schedule
from tests.support.stack import CLASSES, DEMO_MODEL, prompts

K_MAX = 7


@dataclass(frozen=True)
class Case:
    """What to run. `options` go to vLLM as they are; `pause` names how the engine stops for `pause_s` on its way."""

    options: dict[str, Any] = field(default_factory=dict)
    has_adapter: bool = True
    is_sequential: bool = False  # EAGLE-3 in place of P-EAGLE
    count: int = 24
    has_priorities: bool = False
    lora: str | None = None  # folder of the adapter that every other request uses
    pause: str | None = None  # "pause" or "sleep"
    pause_s: float = 1.5

    def argument(self) -> str:
        """Return the program's argument."""
        return json.dumps(asdict(self))


def make_lora(folder: Path) -> None:
    """Write a LoRA adapter of the demo target with random weights, large enough to change the text."""
    config = json.loads((DEMO_MODEL / "target" / "config.json").read_text())
    hidden, rank = config["hidden_size"], 4
    outs = {"q_proj": hidden, "v_proj": config["num_key_value_heads"] * config["head_dim"]}
    rng = np.random.default_rng(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in outs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{prefix}.lora_A.weight"] = (rng.standard_normal((rank, hidden)) * 0.1).astype(np.float32)
            weights[f"{prefix}.lora_B.weight"] = (rng.standard_normal((out, rank)) * 0.1).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    form = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(outs), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(form | {"task_type": "CAUSAL_LM"}))


def main(case: Case) -> None:
    """Reply to the prompts at temperature 0 and say what happened."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - the tests import this module and must not load vLLM
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    options: dict[str, Any] = {}
    if case.has_adapter:
        head = {"method": "eagle3", "num_speculative_tokens": K_MAX, "parallel_drafting": not case.is_sequential}
        folder = DEMO_MODEL / ("eagle3" if case.is_sequential else "peagle")
        options = {
            "scheduler_cls": "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler",
            "speculative_config": head | {"model": str(folder)},
        }
    defaults = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "max_model_len": 2048, "seed": 0}
    llm = LLM(str(DEMO_MODEL / "target"), disable_log_stats=False, **defaults | options | case.options)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    preemptions, durations = _watch(scheduler, has_adapter=case.has_adapter)
    for number, (name, item) in enumerate(prompts(case.count)):
        text = llm.get_tokenizer().apply_chat_template(item["messages"], tokenize=False, add_generation_prompt=True)
        sampling = SamplingParams(temperature=0, max_tokens=48 + number % 30, extra_args={"traffic_class": name})
        lora = LoRARequest("lora", 1, case.lora) if case.lora and number % 2 else None
        priority = -number if case.has_priorities else 0  # the last to come is the first to be served
        engine.add_request(str(number), text, sampling, lora_request=lora, priority=priority)
    rng = random.Random(5)
    ids: dict[int, list[int]] = {}
    steps = 0
    stopped_s = 0.0
    began = time.monotonic()
    while engine.has_unfinished_requests():
        steps += 1
        if case.has_adapter and steps % 3 == 0:
            _thrash(scheduler.control, rng)
        if case.pause is not None and steps in (20, 40):
            stopped_s -= time.monotonic()
            _stop_and_go(core, case)
            stopped_s += time.monotonic()
        for output in engine.step():
            if output.finished:
                ids[int(output.request_id)] = list(output.outputs[0].token_ids)
    ran_s = time.monotonic() - began - stopped_s
    found = {
        "ids": [ids[number] for number in sorted(ids)],
        "preemptions": len(preemptions),
        "ran_s": ran_s,
        "stopped_s": stopped_s,
        "counted_s": sum(durations),
        "steps": steps,
        "drafted": sum(scheduler.drafted) if case.has_adapter else 0,
        "drafter": None if "distributed_executor_backend" in case.options else _drafter(runner_of(core)),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _drafter(runner: Any) -> dict[str, Any] | None:
    """Say what the adapter made of the drafter, and of which widths vLLM compiles its kernel before it serves."""
    drafter = getattr(runner, "drafter", None)
    if drafter is None:
        return None
    from specpilot.engine_adapter.vllm.v1.drafting import of_drafter  # noqa: PLC0415 - imports vLLM, as above

    registered = getattr(getattr(runner, "jit_warmup_registry", None), "_registrations", {})
    name = "num_padding_slots_per_request"
    laid_out = [given for items in registered.values() for _, given in items if name in given]
    return {
        "has_backlog": of_drafter(drafter) is not None,
        "widths": sorted(given[name] for given in laid_out),
        "others": len({tuple(sorted((given | {name: 0}).items())) for given in laid_out}),
        "slots": drafter.extra_slots_per_request,
    }


def _watch(scheduler: Any, *, has_adapter: bool) -> tuple[list[str], list[float]]:
    """Note every preemption, and the duration of every step that the adapter times."""
    preemptions: list[str] = []
    durations: list[float] = []
    preempt = scheduler._preempt_request

    def noting(request: Any, *args: Any, **kwargs: Any) -> None:
        preemptions.append(request.request_id)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = noting
    if has_adapter:
        commit = scheduler.meter.commit
        scheduler.drafted = []

        def timing(shape: Any, duration: float, context: int, outcome: Any) -> None:
            durations.append(duration)
            scheduler.drafted.append(len(outcome.drafts))
            commit(shape, duration, context, outcome)

        scheduler.meter.commit = timing
    return preemptions, durations


def _thrash(control: Any, rng: random.Random) -> None:
    classes = {name: (KRange(1, 16, rng.choice([0, 0, *range(K_MAX + 1)])),) for name in ("default", *CLASSES)}
    probe_ratio = rng.choice([0.0, 0.3])
    schedule = Schedule(control.model, control.pool, control.version + 1, 0.0, 3600.0, probe_ratio, classes)
    control.offer(schedule, time.monotonic())


def _stop_and_go(core: Any, case: Case) -> None:
    """Stop the engine with its requests in it for a while, in one of vLLM's two ways, and let it go on."""
    if case.pause == "sleep":
        core.sleep(0, mode="keep")
        time.sleep(case.pause_s)
        core.wake_up(["scheduling"])
    else:
        core.pause_scheduler(mode="keep", clear_cache=True)
        time.sleep(case.pause_s)
        core.resume_scheduler()


if __name__ == "__main__":
    main(Case(**json.loads(sys.argv[1])))

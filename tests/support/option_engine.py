"""A real engine with given options of vLLM's, stepped by hand: K changes between steps, the engine pauses, LoRA mixes.

`run("option_engine", CASE)` with a `Case` as JSON finds the token ids of each reply, and what happened. Options that
vLLM or the adapter refuses end it with that error.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from specpilot.bench.gpu_engine.engine import chat_text, runner_of
from tests.support.engine_program import finish, head, offer, replies, start
from tests.support.stack import CLASSES, DEMO_MODEL, prompts

K_MAX, STOP_S = 7, 1.5


@dataclass(frozen=True)
class Case:
    """What to run. `options` go to vLLM as they are; with `stops` the engine pauses and sleeps on its way."""

    options: dict[str, Any] = field(default_factory=dict)
    has_adapter: bool = True
    lora: str | None = None  # folder of the adapter that every other request uses
    stops: bool = False
    requests: int = 24

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
    from vllm import SamplingParams  # noqa: PLC0415 - the tests import this module and must not load vLLM
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - as above

    defaults = {"max_num_seqs": 16, "max_model_len": 2048, "seed": 0, "disable_log_stats": False}
    llm = start(head("peagle", K_MAX) if case.has_adapter else None, **defaults | case.options)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    drafted, durations = _watch(scheduler) if case.has_adapter else ([], [])
    for number, (name, item) in enumerate(prompts(case.requests)):
        sampling = SamplingParams(temperature=0, max_tokens=48 + number % 30, extra_args={"traffic_class": name})
        lora = LoRARequest("lora", 1, case.lora) if case.lora and number % 2 else None
        engine.add_request(f"{number:02}", chat_text(llm, item["messages"]), sampling, lora_request=lora)
    rng, stopped_s = random.Random(5), 0.0

    def between(step: int) -> None:
        nonlocal stopped_s
        if case.has_adapter and step % 3 == 0:
            k = {name: rng.choice([0, 0, *range(K_MAX + 1)]) for name in ("default", *CLASSES)}
            offer(scheduler.control, k, probe_ratio=rng.choice([0.0, 0.3]))
        if case.stops and step in STOPS:
            began = time.monotonic()
            STOPS[step](core)
            stopped_s += time.monotonic() - began

    began = time.monotonic()
    ids = replies(engine, between)
    finish(
        {
            "ids": [ids[number] for number in sorted(ids)],
            "ran_s": time.monotonic() - began - stopped_s,
            "stopped_s": stopped_s,
            "counted_s": sum(durations),
            "drafted": sum(drafted),
            "drafter": None if "distributed_executor_backend" in case.options else _drafter(runner_of(core)),
        }
    )


def _pause(core: Any) -> None:
    core.pause_scheduler(mode="keep", clear_cache=True)
    time.sleep(STOP_S)
    core.resume_scheduler()


def _sleep(core: Any) -> None:
    core.sleep(0, mode="keep")
    time.sleep(STOP_S)
    core.wake_up(["scheduling"])


STOPS = {20: _pause, 40: _sleep}
"""vLLM's two ways to stop an engine with its requests in it, by the step before which this one stops for `STOP_S`."""


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


def _watch(scheduler: Any) -> tuple[list[int], list[float]]:
    """Note the number of drafts, and the duration, of every step that the adapter times."""
    drafted: list[int] = []
    durations: list[float] = []
    commit = scheduler.meter.commit

    def timing(shape: Any, duration: float, context: int, outcome: Any) -> None:
        durations.append(duration)
        drafted.append(len(outcome.drafts))
        commit(shape, duration, context, outcome)

    scheduler.meter.commit = timing
    return drafted, durations


if __name__ == "__main__":
    main(Case(**json.loads(sys.argv[1])))

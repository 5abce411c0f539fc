"""A vLLM engine in a process of its own, which the caller steps: for measurements, and for the tests of real engines.

The engine's core runs in this process, so that its runner and its drafter can be inspected. The adapter is registered
by code, so that it works from a checkout that is not installed.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.engine_adapter import number_format, plugin_names
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import ClassGuidance, Guidance, Schedule

Prompt = str | dict[str, list[int]]


def offer(control: Any, k: int, k_of_class: Mapping[str, int] | None = None) -> None:
    """Fix K for all requests from the next step on, or for those of some classes."""
    pinned = {DEFAULT_CLASS: k, **(k_of_class or {})}
    guidance = Guidance(classes={name: ClassGuidance(k_min=each, k_max=each) for name, each in pinned.items()})
    control.offer(Schedule(control.model, control.pool, control.version + 1, time.time(), guidance), time.monotonic())


def runner_of(core: Any) -> Any:
    """Return the model runner of an engine's `core` in this process."""
    return core.model_executor.driver_worker.worker.model_runner


def chat_text(llm: Any, messages: Any) -> str:
    """Return the prompt of a chat."""
    return str(llm.get_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def prompt_texts(folder: Path, count: int) -> list[str]:
    """Return `count` prompts, cycling through the classes."""
    classes = [
        [json.loads(line)["messages"][-1]["content"] for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    ]
    return [classes[i % len(classes)][(i // len(classes)) % len(classes[i % len(classes)])] for i in range(count)]


class Engine:
    """A vLLM engine, stepped by the caller."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 - the parent must not load vLLM

        from specpilot.engine_adapter import plugin  # noqa: PLC0415 - imports vLLM

        if "scheduler_cls" in options:
            plugin_names.switch_on()
            plugin.register()
        self.llm = LLM(**{"dtype": number_format.fitting()} | options)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.control: Any = getattr(self.core.scheduler, "control", None)
        self.runner = runner_of(self.core)
        self._tokenizer = self.llm.get_tokenizer()
        self._served = 0
        self._added: list[str] = []

    def set_k(self, k: int | Sequence[int]) -> None:
        """Set K = `k` for all requests from the next step on, or one K for each group of requests.

        Requests without a group have the K of group 0.
        """
        ks = [k] if isinstance(k, int) else list(k)
        offer(self.control, ks[0], {group(number): value for number, value in enumerate(ks)})

    def add(self, prompts: Sequence[Prompt], tokens: int, groups: int = 1, logprobs: int | None = None) -> list[str]:
        """Add a request for `tokens` tokens at temperature 0 for each prompt; return their ids.

        The requests are assigned to `groups` groups, round robin. With `logprobs` each token has so many likeliest
        ones.
        """
        from vllm import SamplingParams  # noqa: PLC0415 - beside vLLM's

        self._served += 1
        names = [f"{self._served}-{number}" for number in range(len(prompts))]
        self._added += names
        for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            extra = {"traffic_class": group(number % groups)} if groups > 1 else None
            sampling = SamplingParams(
                temperature=0.0, max_tokens=tokens, ignore_eos=True, extra_args=extra, logprobs=logprobs
            )
            engine_prompt = self._chat_prompt(prompt) if isinstance(prompt, str) else prompt
            self.llm.llm_engine.add_request(name, engine_prompt, sampling)
        return names

    def prompt_of(self, tokens: int, text: str) -> Prompt:
        """Return a prompt of exactly `tokens` tokens, which repeats `text`."""
        ids = self._tokenizer.encode(text)
        return {"prompt_token_ids": (ids * (tokens // len(ids) + 1))[:tokens]}

    def _chat_prompt(self, text: str) -> str:
        """Return the prompt for a user's message, in the model's chat template if it has one."""
        if not getattr(self._tokenizer, "chat_template", None):
            return text
        return chat_text(self.llm, [{"role": "user", "content": text}])

    def serve(
        self,
        prompts: Sequence[Prompt],
        tokens: int,
        on_step: Callable[[int, list[Any]], bool] = lambda *_: True,
        groups: int = 1,
    ) -> list[list[int]]:
        """Return the token ids of a reply of `tokens` tokens to each prompt.

        `on_step` gets the number of each step and its outputs; when it returns `False`, all requests are aborted,
        including those that it has added itself.
        """
        names = self.add(prompts, tokens, groups)
        outputs = self.run(on_step)
        return [list(outputs[name].outputs[0].token_ids) if name in outputs else [] for name in names]

    def run(self, on_step: Callable[[int, list[Any]], bool] = lambda *_: True) -> Mapping[str, Any]:
        """Step until no request is left; return the latest output of each request by its id."""
        engine = self.llm.llm_engine
        latest: dict[str, Any] = {}
        number = 0
        while engine.has_unfinished_requests():
            outputs = engine.step()
            number += 1
            for output in outputs:
                latest[output.request_id] = output
            if not on_step(number, outputs):
                engine.abort_request(self._added)
        self._added = []
        return latest


def group(number: int) -> str:
    """Return the traffic class of a group of requests."""
    return f"group-{number}"

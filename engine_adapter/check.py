"""`specpilot check`: says before a start whether the adapter steers a model with vLLM's flags.

It reads the models' `config.json` alone: no weights, no GPU, no vLLM. The rules are those of the start (`vllm.compat`).
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from specpilot.engine_adapter.errors import InvalidSettingsError, UnsupportedEngineError
from specpilot.engine_adapter.model_files import model_config
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import (
    before_start,
    compat,
    serve_flags,
    start_notes,
    stated_engine,
    versions,
    vllm_faults,
)
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from specpilot.engine_adapter.vllm.stated_engine import Machine
from specpilot.policy.settings import fail

PROGRAM = "specpilot check"
RUNS, RUNS_WITH_LESS, REFUSED = "runs", "runs with less", "refused"
_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_OWN_FLAGS = ("vllm", "device", "json")
_NO_SPECULATION = "there is no speculative configuration, so K is 0 and nothing is steered: add --speculative-config"


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on one engine: why it is refused, what is less, what was assumed."""

    model: str
    facts: ConfigFacts | None
    refused: tuple[str, ...]
    less: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One of `RUNS`, `RUNS_WITH_LESS`, `REFUSED`."""
        return REFUSED if self.refused else RUNS_WITH_LESS if self.less else RUNS


def main(arguments: Sequence[str]) -> None:
    """Print the answer; ends with status 1 if the engine is refused, 2 for input that cannot be used."""
    options, words = _parser().parse_known_args(arguments)
    model, flags = serve_flags.split_model(words)
    if model is None:
        fail(PROGRAM, "MODEL: is missing: name a folder with a config.json, or a Hugging Face id")
    try:
        answer = answer_to(model, flags, version=options.vllm, device=options.device)
    except InvalidSettingsError as error:
        fail(PROGRAM, *error.faults)
    sys.stdout.write(as_json(answer) if options.json else as_text(answer))
    if answer.refused:
        sys.exit(1)


def answer_to(model: str, words: Sequence[str], *, version: str | None = None, device: str = "cuda") -> Answer:
    """Return the verdict on `vllm serve MODEL WORDS` with vLLM `version`, by default the installed one."""
    flags = serve_flags.read(words)
    assumed = [f"that vLLM takes --{name}" for name in serve_flags.unknown(flags, _OWN_FLAGS)]
    if version is not None and not re.fullmatch(r"\d+(\.\w+)+", version):
        raise InvalidSettingsError([f"--vllm: is {version!r}; it must be a version such as 0.32.0"])
    if version is None:
        try:
            version = versions.vllm_version()
        except UnsupportedEngineError:
            version = f"{versions.TESTED_VERSIONS[-1]}.0"
            assumed.append(f"vLLM {version} (none is installed here)")
    version += "" if version.count(".") > 1 else ".0"
    if versions.is_among(version, versions.READ_VERSIONS):
        assumed.append(versions.READ_ONLY.format(version=version))
    machine = Machine(
        version,
        device,
        versions.is_among(version, versions.ACCEPTED_ON_V2),
        versions.runner_v2(),
        versions.lists_model,
        os.environ.get(_LONG, "0").strip().lower() in ("1", "true"),
    )
    facts, faults, less = None, list[str](), [_NO_SPECULATION]
    try:
        engine = stated_engine.of_flags(model, cache(model_config), flags, machine)
        if engine is not None:
            facts = before_start.facts_of(engine)
            faults = [*vllm_faults.faults(engine, facts), *compat.faults_of(facts)]
            less = start_notes.limits_of(facts)
            assumed += before_start.assumed(engine, facts)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        fault = f"{model}: a field in the config.json of target or head has no value that vLLM takes ({error})"
        raise InvalidSettingsError([f"{fault}: compare it with the published one"]) from error
    settings = AdapterSettings.read()
    refused = [] if settings.any_vllm else [versions.version_fault(version, None)]
    if facts is not None:
        refused += [*faults, *compat.setting_faults(facts, settings)]
        scheduler = str(flags.get("scheduler-cls", ""))
        if scheduler.startswith("specpilot."):
            is_async = scheduler.endswith("AsyncScheduler")
            refused += compat.scheduler_faults(facts, is_async_scheduler=is_async)
        elif scheduler:
            less.append(f"--scheduler-cls {scheduler} plans no drafts, so nothing is steered: leave it out")
    return Answer(model, facts, tuple(filter(None, refused)), tuple(less), tuple(assumed))


def as_text(answer: Answer) -> str:
    """Return the answer for people."""
    lines = [f"{answer.verdict}: {answer.model}{_engine(answer.facts)}"]
    lines += [f"  refused: {fault}" for fault in answer.refused]
    lines += [f"  less: {note}" for note in answer.less if not answer.refused]
    lines += [f"  assumed: {note}" for note in answer.assumed]
    return "\n".join(lines) + "\n"


def as_json(answer: Answer) -> str:
    """Return the answer for programs."""
    facts: dict[str, Any] | None = asdict(answer.facts) if answer.facts else None
    rest = {"refused": answer.refused, "less": answer.less, "assumed": answer.assumed, "facts": facts}
    return json.dumps({"verdict": answer.verdict.replace(" ", "_"), "model": answer.model, **rest}, indent=1) + "\n"


def _engine(facts: ConfigFacts | None) -> str:
    if facts is None:
        return ""
    runner = "V2" if facts.is_v2 else "V1"
    how = "in parallel" if facts.is_parallel else "one at a time"
    return (
        f", {facts.method}, K up to {facts.k_max}, {how}, vLLM {facts.version} on {facts.device}, model runner {runner}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} MODEL [vLLM's flags] [--vllm VERSION] [--device cuda|cpu] [--json]",
        epilog="MODEL is a folder with a config.json, or a Hugging Face id. It may stand after the flags, as in vLLM.",
        description="Says before a start whether the adapter steers `vllm serve MODEL` with these flags: it runs, runs "
        "with less, or is refused. Reads config.json alone. Status 0, and 1 if it is refused.",
        allow_abbrev=False,
    )
    parser.add_argument("--vllm", metavar="VERSION", help="version of vLLM (the installed one)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where the engine runs (cuda)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the facts that the verdict rests on")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])

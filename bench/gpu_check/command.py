"""`specpilot bench gpu-check`: is the engine adapter right and fast on this machine's GPU? One report, no network.

Parts run in the order of their value, each in processes of its own, and each writes a file to `OUT/parts`; the same
command goes on where it stopped. A call takes 40 minutes at most, or `--within-s`: it begins no part that may not fit,
and parts that time steps end early with the cells so far. Parts that need CUDA are skipped on a CPU, with the reason,
so that the command runs anywhere.

- `machine`: versions and devices; whether the adapter supports the installed vLLM.
- `operations`: the adapter's own operations on tensors, compared with the CPU's; torch raises if one waits for the
  device.
- `steps, MODE` for each of `--graph-modes`: step times by requests and K, with K mixed in one batch, and around a
  request that arrives; the host's time and the device's time; the graph of each step, compared with the engine's
  record; memory. Cells are shuffled and repeated, with a probe of the processor's speed beside each.
- `steps, without speculation` and `steps, P-EAGLE at K_max`: the same on stock vLLM without the adapter.
- `replies without speculation`, `replies, asynchronous`, `replies, synchronous`: at temperature 0 every reply is the
  same without speculation, at each K and while K changes at random (float32 and Triton attention), under
  `VLLM_BATCH_INVARIANT=1` if that runs; otherwise replies may differ only from a token on whose rival is nearly as
  likely.
- `catching up, with graphs`, `catching up, without graphs`: after a period of K = 0 drafts are accepted as often as
  without this period.
- `waits`: synchronisations and compilations after warm-up, by vLLM's own checks.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.gpu_check import exact_parts, report, step_parts
from specpilot.bench.gpu_check.check import FAILED, Check, Line, Part
from specpilot.bench.gpu_check.parts import machine, operations
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench gpu-check"
GO_ON = 75
"""The exit status when parts remain for another call."""
WITHIN_S = 2400.0
"""Default of `--within-s`. All parts together may take longer."""


class GpuCheckSettings(ProgramSettings):
    """Check the engine adapter on this machine's GPU and write a report."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_GPU_CHECK_")

    out: Path = Field(default=Path(".specpilot/gpu-check"), description="folder of the report and of the parts")
    model: Path = Field(default=DEMO_MODEL / "target", description="target model")
    drafter: Path = Field(default=DEMO_MODEL / "peagle", description="P-EAGLE head")
    prompts: Path = Field(default=DEMO_MODEL / "prompts", description="folder with <class>.jsonl")
    k_max: int = Field(default=7, ge=1, description="num_speculative_tokens")
    k: str = Field(default="0,1,3,6,7", description="K to measure, by commas")
    running: str | None = Field(
        default=None, description="requests that run at once, by commas (1,8,32,64,128; on a CPU 1,4)"
    )
    replies: int | None = Field(default=None, ge=1, description="replies compared at each K (48; on a CPU 6)")
    tokens: int | None = Field(default=None, ge=8, description="tokens of a reply that is compared (96; on a CPU 24)")
    steps: int | None = Field(default=None, ge=2, description="steps timed in each cell (32; on a CPU 12)")
    rounds: int = Field(default=2, ge=1, description="times that each cell is measured, in a new random order each")
    graph_modes: str = Field(
        default="default,FULL,FULL_AND_PIECEWISE,none", description="modes of CUDA graphs to time the adapter in"
    )
    capture_size: int | None = Field(default=None, ge=1, description="largest CUDA graph, in tokens (the product's)")
    profiled_steps: int = Field(default=4, ge=0, description="steps of each cell under the profiler, at the end")
    batch_invariant: str = Field(
        default=exact_parts.AUTO,
        pattern="^(auto|on|off)$",
        description="compare replies under VLLM_BATCH_INVARIANT=1: where it runs (auto), on or off",
    )
    timed_s: float | None = Field(default=None, gt=0, description="longest timing of one engine's steps in seconds")
    only: str | None = Field(default=None, description="parts to run, by commas")
    again: bool = Field(default=False, description="run finished parts again")
    within_s: float = Field(default=WITHIN_S, gt=0, description="longest duration of this call in seconds")


def main(arguments: Sequence[str]) -> None:
    """Run the remaining parts of the check and write the report; status 0, 1 (a line failed) or 75 (parts remain)."""
    settings = load(GpuCheckSettings, PROGRAM, arguments)
    began = time.monotonic()
    try:
        ks = [int(item) for item in settings.k.split(",")]
        running = [int(item) for item in (settings.running or "").split(",") if item]
    except ValueError:
        fail(PROGRAM, "--k and --running: give numbers like 0,3,7")
    if not ks or max(ks) > settings.k_max or min(ks) < 0:
        fail(PROGRAM, f"--k: {settings.k!r} is not between 0 and --k-max {settings.k_max}")
    modes = [item.strip() for item in settings.graph_modes.split(",") if item.strip()]
    unknown = [mode for mode in modes if mode not in step_parts.GRAPH_MODES]
    if unknown or not modes:
        fail(PROGRAM, f"--graph-modes: {settings.graph_modes!r}: name some of {', '.join(step_parts.GRAPH_MODES)}")
    parts = all_parts(modes)
    selection = _selection(settings.only, parts)
    for folder in ("parts", "logs"):
        (settings.out / folder).mkdir(parents=True, exist_ok=True)
    check = Check(
        out=settings.out,
        model=settings.model,
        drafter=settings.drafter,
        prompts=settings.prompts,
        k_max=settings.k_max,
        ks=ks,
        running=running,
        replies=settings.replies,
        tokens=settings.tokens,
        steps=settings.steps,
        rounds=settings.rounds,
        profiled_steps=settings.profiled_steps,
        capture_size=settings.capture_size,
        batch_invariant=settings.batch_invariant,
        timed_s=settings.timed_s,
    )
    _refuse_other(settings.out, check)
    until = began + settings.within_s
    due = [part for part in parts if not check.path(part.name).exists() or (settings.again and part in selection)]
    remaining = []
    for part in [part for part in due if part in selection or part is parts[0]]:
        left_s = until - time.monotonic()
        if not (part.fits(left_s) and _run(check, part, left_s)):
            remaining.append(part)
            if part is parts[0]:  # the others rest on it
                fail(PROGRAM, f"--within-s: {settings.within_s:g} s do not suffice for the part `{part.name}`")
    _end(check, parts, [part.name for part in remaining], settings.within_s)


def all_parts(modes: Sequence[str]) -> list[Part]:
    """Return the parts for these modes of CUDA graphs, in the order of their value.

    First step times beside stock vLLM and the exactness of replies; then the rest.
    """
    replies, asynchronous, *others = exact_parts.parts()
    first, *steps = step_parts.parts(modes)
    beginning = [Part("machine", 60, machine), Part("operations", 120, operations, 60)]
    return [*beginning, first, replies, asynchronous, *steps, *others]


def _selection(only: str | None, parts: Sequence[Part]) -> list[Part]:
    if only is None:
        return [*parts]
    names = {part.name: part for part in parts}
    items = [item.strip() for item in only.replace(", ", "\0").split(",") if item.strip()]
    chosen = [item.replace("\0", ", ") for item in items]
    for name in chosen:
        if name not in names:
            fail(PROGRAM, f"--only: no part is called {name!r}; there are: {'; '.join(names)}")
    return [names[name] for name in chosen]


def _refuse_other(out: Path, check: Check) -> None:
    """End the program if the folder's parts were made with other settings."""
    path, settings = out / "settings.json", check.settings()
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
        fail(PROGRAM, f"--out: {out} holds parts of other settings (settings.json): name another folder")
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _run(check: Check, part: Part, left_s: float) -> bool:
    """Run a part and write its file; return whether the remaining time sufficed."""
    say(f"{part.name} ...")
    began = time.monotonic()
    outcome = check.outcome_of(part, left_s)
    if outcome is None:
        say(f"  left     {part.name}: the time of this call was over")
        return False
    lines, data = outcome
    seconds = time.monotonic() - began
    document = {
        "part": part.name,
        "seconds": round(seconds, 1),
        "lines": [line.plain() for line in lines],
        "data": data,
    }
    path = check.path(part.name)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    partial.replace(path)
    say("".join(f"  {line.verdict:<8} {line.name}: {line.text}\n" for line in lines).rstrip("\n"))
    return True


def _end(check: Check, parts: Sequence[Part], remaining: Sequence[str], within_s: float) -> None:
    documents = [
        json.loads(check.path(part.name).read_text(encoding="utf-8"))
        for part in parts
        if check.path(part.name).exists()
    ]
    report.write(check.out, documents, remaining, within_s)
    lines = [Line(**line) for document in documents for line in document["lines"]]
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in report.VERDICTS}
    say(f"report: {check.out / 'report.md'}")
    say(json.dumps(counts | {"left": list(remaining)}))
    sys.exit(GO_ON if remaining else int(any(line.verdict == FAILED for line in lines)))

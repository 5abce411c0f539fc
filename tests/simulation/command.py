"""`specpilot bench simulate`: the control law's choice and gain on a GPU that was not measured. SIMULATION.

The real control law steers a simulated engine in virtual time: step times of a GPU fitted to published figures
(`gpu_plants.json`), acceptance as published. The report has, by requests in flight, for each text and for mixtures, the
law's K, and its tokens per second over those of single Ks.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.report.output import say
from specpilot.policy.settings import ProgramSettings, fail, load
from tests.simulation import table
from tests.simulation.cell import Play, played
from tests.simulation.gpu_plants import SIMULATION, GpuPlant, plants
from tests.simulation.published import loads, texts

PROGRAM = "specpilot bench simulate"
MOST_IN_FLIGHT = 512


class SimulateSettings(ProgramSettings):
    """Simulate the control law on a GPU's step times, fitted to published figures."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_SIMULATE_")

    plant: str = Field(default="b200-30b-a3b-fp8", description="plant with the step times: a name of --list")
    show: Annotated[bool, Field(description="list plants and loads", alias="list")] = False
    loads: str = Field(default=",".join(loads()), description="texts and mixtures, comma separated")
    concurrency: str = Field(default="1,2,4,8,16,32,64,128", description="requests in flight, comma separated")
    seconds: int = Field(default=60, ge=1, description="virtual seconds of each figure")
    reply_tokens: float = Field(default=500.0, ge=2, description="tokens of a reply, in the mean")
    seed: int = Field(default=0, ge=0, description="seed of all draws")
    out: Path = Field(default=Path(".specpilot/bench-simulate"), description="folder for the table, PLANT.md")


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    settings = load(SimulateSettings, PROGRAM, arguments)
    known = plants()
    if settings.show:
        sys.stdout.write(_listed(known))
        return
    if settings.plant not in known:
        fail(PROGRAM, f"--plant: there is no plant {settings.plant!r}; there are {', '.join(known)}")
    names = chosen(PROGRAM, "--loads", settings.loads, tuple(loads()))
    plant, play = known[settings.plant], Play(settings.seconds, settings.reply_tokens, settings.seed)
    in_flight = _numbers(settings.concurrency)
    parts = [table.head(plant, play)]
    say(parts[0])
    for name in names:
        parts.append(_section(plant, name, in_flight, play))
        say(parts[-1])
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / f"{plant.name}.md"
    path.write_text("\n".join(parts))
    say(f"table: {path}")


def _section(plant: GpuPlant, name: str, in_flight: Sequence[int], play: Play) -> str:
    """Play one load at each number in flight that its shares divide."""
    mixture, known = loads()[name], texts()
    results = []
    for number in in_flight:
        counts = mixture.counts(number)
        if counts is not None:
            sources = [known[text].running(count) for text, count in counts.items()]
            results.append(played(plant, sources, play))
    return table.section(mixture, known, results)


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(item) for item in text.split(",") if item})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_IN_FLIGHT:
        fail(PROGRAM, f"--concurrency: {text!r} is not a list of whole numbers from 1 to {MOST_IN_FLIGHT}, like 1,8,64")
    return numbers


def _listed(known: dict[str, GpuPlant]) -> str:
    rows = [f"plants ({SIMULATION}):"]
    rows += [f"  {plant.name:<18}{plant.hardware}; {plant.target}" for plant in known.values()]
    rows += ["loads:"]
    rows += [
        f"  {item.name:<18}{', '.join(f'{share:.0%} {text}' for text, share in item.shares.items())}"
        for item in loads().values()
    ]
    return "\n".join(rows) + "\n"

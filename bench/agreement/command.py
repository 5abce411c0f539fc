"""`specpilot bench agreement`: do the figures of `bench sweep` agree with those of `vllm bench serve`?

Both clients send the same prompts to the same server, with the same reply lengths and requests in flight, alternately;
the order changes from pair to pair. The server is a stock vLLM that this starts, or `--url`. The last line is one JSON
object: the ratios within each pair (median and range), and the range of each client's own figures over its runs.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.agreement.comparison import Pair, compared, fault
from specpilot.bench.agreement.stock import stock_server
from specpilot.bench.agreement.vllm_client import ClientFailedError, Job, run
from specpilot.bench.data.forms import parse
from specpilot.bench.load.chat_client import Sampling
from specpilot.bench.load.conversations import Work
from specpilot.bench.report.output import say
from specpilot.bench.sweep.endpoint import EndpointError, model_of
from specpilot.bench.sweep.measure import CellFailedError, Conditions, measure
from specpilot.bench.sweep.plan import Arm, Cell, Load
from specpilot.bench.sweep.systems import RunningSystem, SystemFailedError
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load
from specpilot.policy.text_files import read_text
from specpilot.ports import check_port

PROGRAM = "specpilot bench agreement"
KINDS = ("code", "chat", "json")


class AgreementSettings(ProgramSettings):
    """Compare the client of `bench sweep` with `vllm bench serve` on one server."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_AGREEMENT_")

    url: str = Field(default="", description="server to ask; without one a stock vLLM of the demo target is started")
    tokenizer: str = Field(default=str(DEMO_MODEL / "target"), description="model folder or name of the server's model")
    k: int = Field(default=0, ge=0, description="K of the server that is started, by the demo's EAGLE-3 head; 0: none")
    pairs: int = Field(default=8, ge=1, description="runs of each client")
    concurrency: int = Field(default=8, ge=1, description="requests in flight")
    num_prompts: int = Field(default=96, ge=1, description="requests of a run")
    output_tokens: int = Field(default=96, ge=2, description="tokens of each reply")
    port: int = Field(default=8690, ge=1, le=65535, description="port of the server that is started")
    out: Path = Field(default=Path(".specpilot/bench-agreement"), description="folder for both clients' files")


def main(arguments: Sequence[str]) -> None:
    """Run it. Exit status 1 when a client or the server failed, or when the two did not do the same work."""
    settings = load(AgreementSettings, PROGRAM, arguments)
    settings.out.mkdir(parents=True, exist_ok=True)
    try:
        if settings.url:
            pairs = _pairs(settings, settings.url.rstrip("/").removesuffix("/v1"))
        elif (conflict := check_port("127.0.0.1", settings.port)) is not None:
            fail(PROGRAM, f"--port: {conflict}")
        else:
            with stock_server(settings.out, settings.port, settings.k) as url:
                pairs = _pairs(settings, url)
    except (CellFailedError, ClientFailedError, EndpointError, SystemFailedError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        sys.exit(1)
    conditions = settings.model_dump(include={"k", "pairs", "concurrency", "num_prompts", "output_tokens"})
    say(json.dumps(conditions | compared(pairs)))
    faults = [difference for pair in pairs if (difference := fault(pair)) is not None]
    if faults:
        sys.stderr.write(f"{PROGRAM}: the clients did not do the same work: {faults[0]}\n")
        sys.exit(1)


def write_questions(path: Path, count: int) -> None:
    """Write `count` questions of the demo pair's held-out prompts, cycling through the kinds, in ShareGPT's form."""
    kinds = []
    for kind in KINDS:
        lines = (DEMO_MODEL / "prompts" / f"{kind}.jsonl").read_text().splitlines()
        conversations = [json.loads(line)["messages"] for line in lines]
        kinds.append([messages[0]["content"] for messages in conversations if len(messages) == 1])
    questions = [question for turn in zip(*kinds, strict=False) for question in turn]
    answer = {"from": "gpt", "value": "-"}  # neither client reads it, and vLLM's leaves out questions without one
    records = [
        {"conversations": [{"from": "human", "value": questions[n % len(questions)]}, answer]} for n in range(count)
    ]
    path.write_text(json.dumps(records))


def _pairs(settings: AgreementSettings, url: str) -> list[Pair]:
    """Run the clients alternately, after an unmeasured run of each."""
    data = settings.out / "questions.json"
    write_questions(data, settings.num_prompts)
    requests, in_flight, tokens = settings.num_prompts, settings.concurrency, settings.output_tokens
    job = Job(model_of(url), settings.tokenizer, data, requests, in_flight, tokens)
    _sweep_figures(url, job, settings.out / "ours-0.json")
    pairs: list[Pair] = []
    for number in range(1, settings.pairs + 1):
        files = [settings.out / f"{client}-{number}.json" for client in ("ours", "vllm")]
        if number % 2:
            sweep = _sweep_figures(url, job, files[0])
            vllm = run(url, job, files[1])
        else:
            vllm = run(url, job, files[1])
            sweep = _sweep_figures(url, job, files[0])
        pairs.append((sweep, vllm))
        rates = f"{sweep['output_throughput']:.0f} tok/s here, {vllm['output_throughput']:.0f} in vllm bench serve"
        say(f"[{number}/{settings.pairs}] {rates}")
    return pairs


def _sweep_figures(url: str, job: Job, path: Path) -> dict[str, Any]:
    """Measure one cell as a sweep does; each one has all the prompts, in their order."""
    work = Work((), 0, 0, job.output_tokens, 0.0, 0.0)
    conditions = Conditions(work, Sampling(0.0, ignore_eos=True), {}, model=job.model)
    conversations = parse("sharegpt", read_text(job.data), str(job.data))
    cell = Cell(Arm("stock"), "questions", Load(job.in_flight), 1)
    figures = measure(RunningSystem(url), cell, conversations, conditions, job.requests)
    path.write_text(json.dumps(figures, indent=1) + "\n")
    return figures

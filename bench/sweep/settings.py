"""The settings that a sweep and a search for rates share, and the measurement that they define."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field, SecretStr

from specpilot.bench.chosen import chosen
from specpilot.bench.data.catalogue import DataSet, data_sets
from specpilot.bench.data.forms import BrokenDataError
from specpilot.bench.data.shipped import CONTEXT_WORDS
from specpilot.bench.load.chat_client import Sampling
from specpilot.bench.load.conversations import Work
from specpilot.bench.sweep import endpoint
from specpilot.bench.sweep.figures import GOODPUT_KEYS
from specpilot.bench.sweep.measure import Conditions
from specpilot.bench.sweep.plan import EAGLE_3, P_EAGLE, STEPPED, SYSTEMS, Arm
from specpilot.bench.sweep.store import digest
from specpilot.bench.sweep.systems import Engines
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import fail

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class SharedSettings(BaseModel):
    """The shared fields of both commands' settings."""

    free_text: ClassVar[frozenset[str]] = frozenset({"engine_args"})

    arms: str = Field(default=",".join(SYSTEMS), description="systems to start, comma separated; none with --endpoints")
    endpoints: str = Field(default="", description="servers that run, as NAME=URL, comma separated, in place of --arms")
    k: str = Field(default="1,3,5,7", description="K of the EAGLE-3 and P-EAGLE arms, comma separated")
    data: str = Field(default="code,chat,json", description="data sets, comma separated: NAME, NAME=PATH or PATH")
    context_words: int = Field(default=CONTEXT_WORDS, ge=50, description="words of shipped long contexts")
    model: str = Field(default=str(DEMO_MODEL / "target"), description="target of the engines that are started")
    p_eagle: str = Field(default=str(DEMO_MODEL / "peagle"), description="P-EAGLE head: a folder or a name")
    eagle3: str = Field(default=str(DEMO_MODEL / "eagle3"), description="EAGLE-3 head: a folder or a name")
    engine_args: str = Field(default="", description="further flags for every vLLM, in one string")
    max_num_seqs: int = Field(default=32, ge=1, description="largest number of running requests per engine")
    one_at_a_time: bool = Field(default=False, description="run one engine at a time, where they do not fit together")
    served_model: str | None = Field(default=None, description="model to ask endpoints for; default: their first")
    api_key: SecretStr | None = Field(default=None, description="bearer token of the endpoints")
    control_token: SecretStr | None = Field(default=None, description="token of the endpoints' /speculation, to set K")
    num_prompts: int = Field(default=12, ge=1, description="requests of a cell, at least")
    output_tokens: int = Field(default=96, ge=2, description="tokens of a reply, in the mean")
    output_spread: float = Field(default=0.5, ge=0, lt=1, description="how much a reply's length varies, 0 to 1")
    ignore_eos: bool = Field(default=True, description="give replies their full length (vLLM and SGLang)")
    temperature: float = Field(default=0.0, ge=0, description="sampling temperature")
    think_time_s: float = Field(default=0.0, ge=0, description="seconds between the turns of a conversation")
    burstiness: float = Field(default=1.0, gt=0, description="of open-loop arrivals: 1 is Poisson, less is burstier")
    goodput: str = Field(default="", description="SLOs in ms, as ttft:500,tpot:50,e2el:5000")
    settle_s: float = Field(default=5.0, ge=0, description="seconds of load before a cell of the adaptive arm")
    price_per_hour: float | None = Field(default=None, gt=0, description="dollars an hour, for tokens per dollar")
    port: int = Field(default=8600, ge=1, le=65000, description="first of the ports of the engines")


@dataclass(frozen=True, slots=True)
class Question:
    """The measurement that the settings define."""

    arms: tuple[Arm, ...]
    endpoints: dict[str, str]
    data_sets: tuple[DataSet, ...]
    conditions: Conditions
    engines: Engines
    control_token: str | None = field(default=None, repr=False)


def question_of(program: str, settings: SharedSettings, out: Path) -> Question:
    """Return the measurement; checks each endpoint. Ends `program` when a setting or an endpoint is wrong."""
    endpoints = _endpoints(program, settings.endpoints)
    ks = numbers(program, "--k", settings.k, least=0)
    try:
        sets = data_sets([item for item in settings.data.split(",") if item], settings.context_words)
    except BrokenDataError as error:
        fail(program, f"--data: {error}")
    if not sets:
        fail(program, "--data: names no data set")
    names = list(endpoints) if endpoints else chosen(program, "--arms", settings.arms, SYSTEMS)
    if not names:
        fail(program, f"--arms: names none of {', '.join(SYSTEMS)}")
    if not endpoints:
        _check_models(program, settings, names)
    key, token = _secret(settings.api_key), _secret(settings.control_token)
    arms: list[Arm] = []
    for name in names:
        if name in endpoints:
            try:
                endpoint.model_of(endpoints[name], key)
            except endpoint.EndpointError as error:
                fail(program, f"--endpoints: {name}: {error}")
        is_stepped = name in STEPPED and (name not in endpoints or _can_set_k(program, name, endpoints[name], token))
        arms += [Arm(name, k) for k in ks] if is_stepped else [Arm(name)]
    work = Work((), 0, 0, settings.output_tokens, settings.output_spread, settings.think_time_s)
    conditions = Conditions(
        work=work,
        sampling=Sampling(settings.temperature, settings.ignore_eos),
        slo_ms=slo(program, settings.goodput),
        model=settings.served_model,
        api_key=key,
        burstiness=settings.burstiness,
        settle_s=settings.settle_s,
        price_per_hour=settings.price_per_hour,
    )
    heads = {P_EAGLE: settings.p_eagle, EAGLE_3: settings.eagle3}
    engines = Engines(
        settings.model, heads, max(*ks, 1), settings.max_num_seqs, settings.engine_args, out, settings.port
    )
    return Question(tuple(arms), endpoints, tuple(sets), conditions, engines, token)


def what_a_measurement_is(settings: SharedSettings, question: Question) -> dict[str, Any]:
    """Return the settings that all measurements of a folder must share."""
    engines, conditions = question.engines, question.conditions
    values: dict[str, Any] = {
        "model": settings.served_model if question.endpoints else engines.model,
        "engine_args": settings.engine_args,
        "output_tokens": settings.output_tokens,
        "output_spread": settings.output_spread,
        "think_time_s": settings.think_time_s,
        "sampling": asdict(conditions.sampling),
        "burstiness": conditions.burstiness,
        "settle_s": conditions.settle_s,
        "goodput": dict(conditions.slo_ms),
    }
    values |= {f"data {item.name}": digest(item.conversations) for item in question.data_sets}
    if question.endpoints:
        return values | {f"endpoint {name}": url for name, url in question.endpoints.items()}
    sizes = {"max_num_seqs": engines.max_num_seqs, "largest k": engines.k_max}  # of an engine's buffers and graphs
    return values | sizes | {f"head {name}": head for name, head in engines.heads.items()}


def numbers(program: str, flag: str, text: str, least: int) -> list[int]:
    """Return the whole numbers of a setting, each at least `least`, without duplicates."""
    try:
        values = list(dict.fromkeys(int(item) for item in text.split(",") if item))
    except ValueError:
        fail(program, f"{flag}: {text!r} is not a list of numbers like 1,3,7")
    if not values or min(values) < least:
        fail(program, f"{flag}: {text!r} must have at least one number, each at least {least}")
    return values


def slo(program: str, text: str) -> dict[str, float]:
    """Return the bounds in `text`, in ms by name."""
    bounds = {}
    for item in filter(None, text.split(",")):
        name, _, bound = item.partition(":")
        try:
            bounds[name] = float(bound)
        except ValueError:
            fail(program, f"--goodput: {item!r} is not NAME:MILLISECONDS, as ttft:500")
        if name not in GOODPUT_KEYS or bounds[name] <= 0:
            fail(program, f"--goodput: {item!r}: the name is one of {', '.join(GOODPUT_KEYS)}, the bound above 0")
    return bounds


def _endpoints(program: str, text: str) -> dict[str, str]:
    urls: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, mark, url = item.partition("=")
        if not mark or not _NAME.fullmatch(name) or not url.startswith(("http://", "https://")):
            fail(program, f"--endpoints: {item!r} is not NAME=URL, as none=http://127.0.0.1:8000")
        if name in urls:
            fail(program, f"--endpoints: {name} is named twice")
        urls[name] = url.rstrip("/").removesuffix("/v1")
    return urls


def _can_set_k(program: str, name: str, url: str, control_token: str | None) -> bool:
    """Return whether K of an endpoint can be set; prints why not, and ends `program` if only the token is wrong."""
    try:
        endpoint.speculation(url, control_token)
    except endpoint.RefusedError as error:
        remedy = "or name the endpoint otherwise to measure it at the K that it has"
        fail(program, f"--endpoints: {name}: {error}, {remedy}")
    except endpoint.EndpointError as error:
        sys.stderr.write(f"{program}: {name} is measured at the K that it has, --k is not for it: {error}\n")
        return False
    return True


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value is not None else None


def _check_models(program: str, settings: SharedSettings, names: Sequence[str]) -> None:
    """End the program when a needed path holds no model."""
    needed = [("--model", settings.model)]
    needed += [("--eagle3", settings.eagle3)] if EAGLE_3 in names else []
    needed += [("--p-eagle", settings.p_eagle)] if {P_EAGLE, "adaptive"} & {*names} else []
    for flag, name in needed:
        if name.startswith(("/", ".", "~")) and not (Path(name).expanduser() / "config.json").is_file():
            fail(program, f"{flag}: no model in {name} (there is no config.json); name a model folder")

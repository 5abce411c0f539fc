"""The settings of `specpilot up`, all read and checked before anything starts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from specpilot import embedded_redis, sagemaker
from specpilot.demo_model import DEMO_HEAD, DEMO_HEADS, DEMO_MODEL, DEMO_TARGET, MTP_DEMO
from specpilot.engine_adapter.head_config import MTP, MTP_K_MAX
from specpilot.policy.clean_text import stripped
from specpilot.policy.codec import decode, from_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.model_policy import Policy
from specpilot.policy.settings import ProgramSettings, fail, load
from specpilot.policy.store import Store
from specpilot.policy.text_files import read_text
from specpilot.ports import check_port

PROGRAM = "specpilot up"
PORT_LIMIT = 65_535
SAGEMAKER_READY_WITHIN_S = 3600.0  # the longest that an endpoint waits for a container


class UpSettings(ProgramSettings):
    """Run Redis, engine, controller and gateway on this machine until Ctrl-C."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_UP_")

    free_text = frozenset({"policy", "engine_args"})

    mode: Literal["off", "advise", "act"] = Field(
        default="act", description="off: static K; advise: show K, and run the static K; act: adapt K"
    )
    k: int | None = Field(default=None, ge=0, le=64, description="static K: with --mode off, and as fall-back")
    engines: int = Field(default=1, ge=1, le=16, description="how many engines")
    controllers: int = Field(
        default=1,
        ge=0,
        le=4,
        description="how many controllers: 0 to steer through /speculation, 2 to have one stand by",
    )
    unattended: bool = Field(
        default=False, description="no terminal: JSON lines, exit status 1 when a part keeps dying"
    )
    sagemaker: bool = Field(
        default=False, description="unattended, with SM_VLLM_* and /opt/ml/model as SageMaker has them"
    )
    host: str = Field(default="127.0.0.1", description="address that the gateway listens on")
    port: int = Field(default=8080, ge=1, le=65535, description="gateway's port")
    workers: int = Field(default=1, ge=1, le=64, description="gateway's processes, which share the port")
    public_paths: str = Field(
        default="",
        description="what other machines may ask the gateway for, e.g. /ping,/invocations; empty: everything",
    )
    admin_host: str = Field(default="127.0.0.1", description="address that the admin API listens on")
    admin_port: int = Field(default=8081, ge=1, le=65535, description="first controller's port")
    engine_port: int = Field(default=8100, ge=1, le=65535, description="first engine's port")
    model: str = Field(default=str(DEMO_TARGET), description="target model: a folder or a name")
    drafter: str = Field(
        default=str(DEMO_HEAD),
        description="draft head: a folder or a name; mtp: the model's own; p-eagle, eagle3, dflash: the demo's",
    )
    served_model_name: str = Field(default="demo", description="name that clients ask for")
    k_max: int = Field(default=7, ge=1, le=64, description="largest K")
    max_num_seqs: int = Field(default=32, ge=1, description="largest number of running requests per engine")
    engine_args: str = Field(default="", description="further flags for vLLM, in one string")
    admin_token: SecretStr | None = Field(default=None, description="bearer token of the admin API")
    redis_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("redis_url", "REDIS_URL"),
        description="use this Redis instead of the embedded one",
    )
    policy: str | None = Field(default=None, description="the model's policy: a JSON file, or the JSON itself")
    ready_within_s: float = Field(
        default=280.0,
        gt=0,
        le=86_400,
        description="seconds that Redis may take to answer, and then the engines to load",
    )
    state_dir: Path = Field(default=Path(".specpilot"), description="logs and embedded data")


def read(arguments: Sequence[str]) -> UpSettings:
    """Return the settings; with `--sagemaker` on top of what the endpoint states."""
    settings = load(UpSettings, PROGRAM, arguments)
    if not settings.sagemaker:
        return _with_head(settings)
    endpoint = sagemaker.stated(os.environ, settings.engines, settings.controllers)
    if endpoint.faults:
        fail(PROGRAM, *endpoint.faults)
    fields_set = settings.model_fields_set
    for name in endpoint.settings.keys() - fields_set:  # read like the operator's own, so that a wrong one is named
        os.environ[f"SPECPILOT_UP_{name.upper()}"] = endpoint.settings[name]
    settings = _with_head(load(UpSettings, PROGRAM, arguments))
    beside = Path(settings.model) / "drafter"
    return settings.model_copy(
        update={
            "unattended": True,
            "engine_args": f"{endpoint.engine_args} {settings.engine_args}".strip(),
            "ready_within_s": settings.ready_within_s if "ready_within_s" in fields_set else SAGEMAKER_READY_WITHIN_S,
            "drafter": str(beside) if "drafter" not in fields_set and beside.is_dir() else settings.drafter,
        }
    )


def _with_head(settings: UpSettings) -> UpSettings:
    """Return the settings with the demo head that `--drafter` names; its MTP head comes with a target of its own."""
    if settings.drafter != MTP:
        return settings.model_copy(update={"drafter": DEMO_HEADS.get(settings.drafter, settings.drafter)})
    return settings.model_copy(
        update={
            "model": str(MTP_DEMO) if settings.model == str(DEMO_TARGET) else settings.model,
            "k_max": settings.k_max if "k_max" in settings.model_fields_set else MTP_K_MAX,
        }
    )


def check(settings: UpSettings) -> None:
    """End the program with status 2 and a line for each setting that cannot work, before anything is started."""
    _check_models(settings)
    if settings.k is not None and settings.k > settings.k_max:
        fail(PROGRAM, f"--k: is {settings.k}; it must be at most --k-max, {settings.k_max}")
    policy_given(settings)
    if settings.redis_url is None:
        try:
            embedded_redis.executable()
        except embedded_redis.NotInstalledError as error:
            fail(PROGRAM, f"--redis-url: {error}")
        return
    try:
        Store(settings.redis_url)  # asks nothing: Redis may still be starting, and is waited for
    except InvalidDocumentError as error:
        fail(PROGRAM, f"--redis-url: {error}; check the address, or leave it out for the embedded server")


def check_ports(settings: UpSettings) -> None:
    """End the program if a port is invalid, given to two parts, or cannot be listened on."""
    admin, engine = settings.admin_port, settings.engine_port
    ports = [("--port", settings.host, settings.port)]
    ports += [("--admin-port", settings.admin_host, admin + index) for index in range(settings.controllers)]
    ports += [("--engine-port", "127.0.0.1", engine + index) for index in range(settings.engines)]
    flags_by_port: dict[int, str] = {}
    for flag, _, port in ports:
        if port > PORT_LIMIT:
            fail(PROGRAM, f"{flag}: the parts would take port {port}, above {PORT_LIMIT}; choose a lower one")
        if port in flags_by_port:
            counts = f"with --controllers {settings.controllers} and --engines {settings.engines}"
            both = f"port {port} is a port of {flags_by_port[port]} too, {counts}"
            fail(PROGRAM, f"{flag}: {both}; choose another for one of them")
        flags_by_port[port] = flag
    for flag, host, port in ports:
        if (fault := check_port(host, port)) is not None:
            fail(PROGRAM, f"{flag}: {fault}")


def _check_models(settings: UpSettings) -> None:
    has_own_config = "--speculative-config" in settings.engine_args
    models = [("--model", settings.model), *([] if has_own_config else [("--drafter", settings.drafter)])]
    for flag, name in models:
        if Path(name).parent == DEMO_MODEL and not Path(name).is_dir():
            fail(PROGRAM, f"{flag}: missing; the demo model is in the source tree only, so name a model")
        if name.startswith(("/", ".", "~")) and not (Path(name) / "config.json").is_file():
            fail(PROGRAM, f"{flag}: no model in {name} (there is no config.json); name a model folder")
    if settings.model != str(DEMO_TARGET) and settings.drafter in DEMO_HEADS.values() and not has_own_config:
        fail(PROGRAM, "--drafter: missing; name the head of this model, the demo's fits no other")


def policy_given(settings: UpSettings) -> Policy | None:
    """Return the policy of `--policy`; end the program if it is not valid."""
    if settings.policy is None:
        return None
    try:
        stated = stripped(settings.policy)
        text = stated if stated.startswith("{") else read_text(Path(stated))
        policy = from_plain(Policy, decode(dict, text))
    except OSError as error:
        fail(
            PROGRAM, f"--policy: cannot read {settings.policy}: {error.strerror}; name a file, or give the JSON itself"
        )
    except InvalidDocumentError as error:
        fail(PROGRAM, *(f"--policy: {fault}" for fault in error.faults))
    if policy.model != settings.served_model_name:
        fail(
            PROGRAM,
            f"--policy: is for the model {policy.model!r}; --served-model-name is {settings.served_model_name!r}",
        )
    return policy

"""Settings of the adapter, from the environment of the engine's processes. `specpilot engine` sets it from flags."""

from typing import Annotated, Any, Self

from pydantic import AliasChoices, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.policy.clean_text import is_address
from specpilot.policy.codec import faults_of
from specpilot.policy.names import DEFAULT_CLASS, K_LIMIT
from specpilot.policy.schedule import ClassGuidance, Guidance
from specpilot.policy.settings import cleaned, unknown_variables

PREFIX = "SPECPILOT_ENGINE_"


class AdapterSettings(BaseSettings):
    """Settings of the adapter inside one engine; every field is `SPECPILOT_ENGINE_` plus its name in upper case."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore")

    redis_url: str | None = Field(
        default=None, validation_alias=AliasChoices(PREFIX + "REDIS_URL", "REDIS_URL"), description="shared state"
    )
    url: str = Field(default="http://127.0.0.1:8000", description="where the gateway reaches this engine")
    id: str | None = Field(default=None, description="name of the engine; default: made from its URL")
    pool: str = Field(default="default", description="engines of one model, hardware and configuration")
    static_k: int | None = Field(
        default=None, ge=0, description="K while no schedule was received; default: the engine chooses K, from K_max on"
    )
    probe_ratio: float = Field(
        default=0.005, ge=0, le=0.5, description="share of the time for probes before the first schedule"
    )
    least_k: int = Field(default=0, ge=0, le=K_LIMIT, description="the least K before the first schedule")
    calibrate_s: float = Field(
        default=20.0,
        ge=0,
        description="seconds of calibration of step times at the start at most; 0: none",
    )
    control_token: SecretStr | None = Field(default=None, description="bearer token of GET and PUT /speculation")
    trust_this_machine: bool = Field(
        default=False, description="without a control token, serve /speculation to programs on this machine"
    )
    gateway_key: SecretStr | None = Field(
        default=None, description="API key of the gateway: only requests with it may state a class; default: all may"
    )
    drain_grace_s: float = Field(default=5.0, ge=0, le=3600, description="seconds after SIGTERM for gateways to see it")
    drain_timeout_s: float = Field(default=30.0, ge=0, le=86_400, description="seconds for running requests after that")
    any_vllm: bool = Field(default=False, description="run on a vLLM that lacks something or was not tested")
    backlog_mib: float = Field(default=192.0, gt=0, description="memory for rows that the drafter is yet to read, MiB")

    graph_k: Annotated[tuple[int, ...] | None, NoDecode] = Field(
        default=None, description="K that get FULL CUDA graphs of their own, by commas; default: by attention backend"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _clean(cls, value: object, info: ValidationInfo) -> object:
        return cleaned(cls, str(info.field_name), value, with_login=("redis_url",))

    @field_validator("graph_k", mode="before")
    @classmethod
    def _split_graph_k(cls, value: Any) -> Any:
        """Split a list by commas; refuse any other text."""
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() for part in parts):
            raise ValueError(f"{value!r} is no list of K; write whole numbers from 0 on, by commas: 1,3")
        return tuple(int(part) for part in parts)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        """Refuse an address that gateways and controllers, which read it in the engine's record, could not parse."""
        if not is_address(url):
            raise ValueError("is no engine's address; write http://HOST:PORT")
        return url

    @classmethod
    def read(cls, **values: str) -> Self:
        """Return the settings; `values` replace those of the environment.

        Raises `InvalidSettingsError`, which names the variable of each invalid or unknown setting.
        """
        unknown = unknown_variables(cls)
        if unknown:
            raise InvalidSettingsError(unknown)
        try:
            return cls(**values)  # type: ignore[arg-type] # pydantic checks them
        except ValidationError as error:
            raise InvalidSettingsError(
                f"{PREFIX}{fault.field.upper()}: {fault.problem}" for fault in faults_of(error)
            ) from error

    @property
    def engine_id(self) -> str:
        """The engine's name: the setting `id`, else the URL without its scheme."""
        return self.id or self.url.split("://", maxsplit=1)[-1].rstrip("/").replace("/", "_")

    @property
    def own_guidance(self) -> Guidance:
        """The guidance of an engine that adapts alone."""
        return Guidance(classes={DEFAULT_CLASS: ClassGuidance(k_min=self.least_k)}, probe_ratio=self.probe_ratio)

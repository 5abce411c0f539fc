"""What the adapter reads from the environment of the engine's processes. `specpilot engine` sets it from flags."""

from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

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
    static_k: int | None = Field(default=None, ge=0, description="K without a valid schedule; default: K_max")
    control_token: str | None = Field(default=None, description="bearer token of GET and PUT /speculation")
    any_vllm: bool = Field(default=False, description="run on a vLLM that lacks something or was not tested")
    draft_width: bool = Field(default=True, description="lay out only as many draft slots as the step's largest K")

    backlog_mib: float = Field(default=64.0, gt=0, description="memory for rows that the drafter is yet to read, MiB")

    @property
    def engine_id(self) -> str:
        """The engine's name: as set, else its URL without the scheme."""
        return self.id or self.url.split("://", maxsplit=1)[-1].rstrip("/").replace("/", "_")

"""The controller's settings: flags, or `SPECPILOT_CONTROLLER_*` in the environment."""

import socket
import uuid
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from specpilot.policy.access import roles_in
from specpilot.policy.settings import HttpAddress, ProgramSettings


def _holder() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


class ControllerSettings(ProgramSettings):
    """Guides the choice of K by every engine that is registered in Redis, and serves the admin API and the console."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_CONTROLLER_")

    with_login = frozenset({"prometheus", "redis_url"})

    redis_url: Annotated[
        str,
        Field(
            description="the Redis of the gateway and the engines, e.g. redis://127.0.0.1:6379/0",
            validation_alias=AliasChoices("redis_url", "SPECPILOT_CONTROLLER_REDIS_URL", "REDIS_URL"),
        ),
    ]
    host: Annotated[str, Field(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(description="port of the admin API, the console and /metrics", ge=0, le=65535)] = 8081
    admin_token: Annotated[
        SecretStr | None,
        Field(description="the first admin's bearer token of the admin API; with it named tokens are made"),
    ] = None
    trust_this_machine: Annotated[
        bool,
        Field(description="serve programs on this machine without a token, where --admin-token is not set"),
    ] = False
    oidc_issuer: Annotated[
        HttpAddress | None,
        Field(
            description="take tokens of this OpenID Connect issuer too, e.g. https://login.example.com",
        ),
    ] = None
    oidc_audience: Annotated[str | None, Field(description="audience that such a token must name", min_length=1)] = None
    oidc_claim: Annotated[str, Field(description="claim of such a token that gives the role", min_length=1)] = "groups"
    oidc_roles: Annotated[str, Field(description="roles by its values: sre=operator,platform=admin")] = ""
    interval_s: Annotated[float, Field(description="seconds between two decisions", ge=0.1, le=5)] = 0.5
    prometheus: Annotated[
        HttpAddress | None,
        Field(
            description="read the engines' metrics from this Prometheus server instead, e.g. http://prometheus:9090",
        ),
    ] = None
    holder: Annotated[str, Field(description="name of this controller in the leader's lease", min_length=1)] = Field(
        default_factory=_holder
    )
    default_mode: Annotated[Literal["off", "advise", "act"], Field(description="mode without a policy")] = "act"
    log_format: Annotated[
        Literal["text", "json"],
        Field(description="form of the lines on standard error; json: every line is one object, from the first"),
    ] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="least severe log line")] = (
        "info"
    )

    @field_validator("oidc_roles")
    @classmethod
    def _mapped(cls, value: str) -> str:
        roles_in(value)
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.oidc_issuer is not None and (self.oidc_audience is None or not self.oidc_roles):
            raise ValueError("--oidc-issuer needs --oidc-audience and --oidc-roles too")
        return self

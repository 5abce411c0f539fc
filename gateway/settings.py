"""The settings of a gateway: flags, then the environment, then these defaults."""

import logging
import re
import sys
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from specpilot.gateway.wire.origins import ANY
from specpilot.policy import json_log, redis_url
from specpilot.policy.clean_text import is_address
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.settings import ProgramSettings, without_secrets

PROGRAM = "specpilot gateway"

ENGINE_SCHEMES = ("http", "https", "dns+http", "dns+https")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
Port = Annotated[int, Field(ge=0, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class GatewaySettings(ProgramSettings):
    """Settings of `specpilot gateway`."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_GATEWAY_")

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: Port = Field(8080, description="port to listen on; 0 picks a free one and logs it")
    admin_port: Port | None = Field(
        None,
        description="port for /metrics and /admin alone, which --port then lacks; close it to clients, because its "
        "metrics name engines and keys",
    )
    tls_cert_file: str | None = Field(
        None,
        description="PEM file with the server's certificate and its chain; its key too, or in --tls-key-file",
    )
    tls_key_file: str | None = Field(None, description="PEM file with the key of --tls-cert-file, without a password")
    tls_client_ca_file: str | None = Field(
        None, description="PEM file with authorities; clients of --port then need a certificate from one of them"
    )
    workers: int = Field(1, ge=1, le=64, description="processes that share the port; above 1 under a supervisor")
    engine: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="base URL of an engine, e.g. http://127.0.0.1:8100; repeat for more; works without Redis; "
        "dns+http://name:8000: every address of the name",
    )
    public_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="paths that other machines may request, e.g. /ping,/invocations; default: every path"
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="origins of web pages that may call, e.g. https://app.example; *: any; default: none"
    )
    dns_refresh_s: Seconds = Field(5.0, description="seconds between two DNS look-ups of a dns+http:// engine")
    balance: Literal["least", "two_choices"] = Field(
        "least",
        description="among engines that a request prefers equally: the least busy, or the less busy of two_choices",
    )
    affinity: Literal["none", "session", "prefix", "both"] = Field(
        "both", description="prefer the engine of the request's session, or one with its prompt's beginning"
    )
    redis_url: str | None = Field(
        None,
        validate_default=True,
        validation_alias=AliasChoices("redis_url", "REDIS_URL"),
        description="Redis that holds engines, policies and API keys: redis://, rediss:// (TLS), unix://, "
        "redis+sentinel:// or redis+cluster://",
    )
    redis_poll_s: Seconds = Field(2.0, description="seconds between two full reads of Redis without an announcement")
    api_keys_file: str | None = Field(
        None, description="JSON list of {key_id, key, ...}, see docs/reference/gateway/keys.md; added to those in Redis"
    )
    require_api_key: bool = Field(default=False, description="reject requests without a key even while no key exists")
    admin_token: SecretStr | None = Field(None, description="bearer token of GET /admin/config; without it: closed")
    engine_api_key: SecretStr | None = Field(None, description="bearer token for engines; the client's is never sent")
    engine_ca_file: str | None = Field(
        None, description="PEM file with the authorities of https:// engines, instead of the system's"
    )
    engine_cert_file: str | None = Field(
        None,
        description="PEM file with the certificate to show to engines; its key too, or in --engine-key-file",
    )
    engine_key_file: str | None = Field(None, description="PEM file with the key of --engine-cert-file")
    name_responses: bool = Field(
        default=True,
        description="name responses of /v1/responses after their engine, by request_id in the body; off for engines "
        "that reject this field",
    )
    ask_usage: bool = Field(
        default=True, description="ask engines for the usage of every stream; off for engines without stream_options"
    )
    send_priority: bool = Field(
        default=False, description="send engines the class's priority; for vLLM with --scheduling-policy priority"
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="largest request body")
    decode_bodies: bool = Field(
        default=True, description="decode request bodies in gzip, deflate or zstd; off: they get 415"
    )
    max_bodies_bytes: int = Field(
        256 * 1024 * 1024, ge=1024, description="bytes of all request bodies held at once; more are rejected"
    )
    connect_timeout_s: Seconds = Field(2.0, description="seconds to connect to an engine")
    first_byte_timeout_s: Seconds = Field(
        600.0, description="seconds from the whole request to the engine's first byte of body; its queue counts"
    )
    stream_first_byte_timeout_s: Seconds = Field(
        120.0,
        description="seconds that an engine may be silent before a stream's first content; any byte, also of comments "
        "and pings, ends a silence",
    )
    stream_content_timeout_s: Seconds = Field(
        600.0, description="seconds from the whole request to a stream's first content, keep-alives or not"
    )
    pass_keep_alives: bool = Field(
        default=True,
        description="pass comments and pings on before a stream's first content, which commits to status 200: a later "
        "error becomes an event; off: they wait for the content, and the error keeps its status",
    )
    idle_timeout_s: Seconds = Field(
        120.0, description="seconds between two reads of a response, and seconds that a client may block one"
    )
    total_timeout_s: Seconds = Field(3600.0, description="seconds from the whole request to the end of its response")
    request_timeout_s: Seconds = Field(60.0, description="seconds a client may pause while it sends a request")
    body_timeout_s: Seconds = Field(300.0, description="seconds from a request's head to its last byte")
    max_connections: int = Field(16_384, ge=1, description="client connections of one process; more are rejected")
    keep_alive_s: Seconds = Field(75.0, description="seconds an idle client connection stays open")
    engine_keep_alive_s: float = Field(
        4.0, ge=0, le=86_400, description="seconds an idle engine connection is kept; below the engine's own (vLLM: 5)"
    )
    tcp_keep_alive_s: int = Field(
        60,
        ge=0,
        le=32_767,
        description="seconds of silence after which TCP asks clients and engines whether they are still there, and "
        "between two such probes; 3 without an answer end the connection; 0: never",
    )
    engine_capacity: int | None = Field(
        None, ge=1, description="requests under way on one engine from this replica; more wait; default: no limit"
    )
    queue_limit: int = Field(128, ge=0, description="requests of one model and class that may wait for an engine")
    queue_timeout_s: Seconds = Field(30.0, description="seconds that a request may wait for an engine with room")
    drain_grace_s: float = Field(
        0.0, ge=0, le=3600, description="seconds after SIGTERM in which new requests are still served"
    )
    drain_timeout_s: Seconds = Field(30.0, description="seconds that requests in flight get to finish after SIGTERM")
    retry_ratio: float = Field(
        0.1, ge=0, le=1, description="retries allowed, as a share of requests (plus one a second)"
    )
    show_engine: bool = Field(
        default=False,
        description="name the engine in the header x-specpilot-engine (its address if it has no id), and engines and "
        "API keys in /metrics of --port",
    )
    access_log: bool = Field(default=True, description="one JSON line per request on standard error")
    log_format: Literal["text", "json"] = Field(
        "text", description="form of the lines on standard error; json: every line is one object, from the first"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that is logged; above info there is no access log"
    )

    def open_log(self, worker: int | None = None) -> None:
        """Log on standard error from now on; each line names the `worker`."""
        if self.log_format == "json":
            json_log.use(self.log_level, **({} if worker is None else {"worker": worker}))
        else:
            place = "" if worker is None else f" [worker {worker}]"
            log_format = f"%(levelname)s %(name)s{place}: %(message)s"
            logging.basicConfig(level=self.log_level.upper(), stream=sys.stderr, format=log_format)

    @field_validator("engine", "public_paths", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)):
            return value
        return tuple(url.strip() for text in texts for url in str(text).split(",") if url.strip())

    @field_validator("engine")
    @classmethod
    def _check_engines(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            scheme = url.partition("://")[0].lower()
            if scheme not in ENGINE_SCHEMES or not is_address(url.removeprefix("dns+")):
                named = ", ".join(f"{item}://" for item in ENGINE_SCHEMES)
                raise ValueError(f"is no address that begins with one of {named}; write e.g. http://127.0.0.1:8100")
        return tuple(dict.fromkeys(url.rstrip("/").removesuffix("/v1") for url in urls))

    @field_validator("tls_key_file", "tls_client_ca_file", "engine_key_file")
    @classmethod
    def _check_certificate(cls, path: str | None, info: ValidationInfo) -> str | None:
        needed = "engine_cert_file" if info.field_name == "engine_key_file" else "tls_cert_file"
        if path is not None and info.data.get(needed) is None:
            raise ValueError(f"there is no certificate to use it with; give --{needed.replace('_', '-')} too")
        return path

    @field_validator("public_paths")
    @classmethod
    def _check_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or "?" in path:
                raise ValueError(f"{path!r} is no path; write e.g. /ping,/invocations")
        return paths

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        parsed = tuple(origin.rstrip("/").lower() for origin in origins)
        for origin in parsed:
            if origin != ANY and _ORIGIN.fullmatch(origin) is None:
                shown = without_secrets(origin)
                raise ValueError(f"{shown!r} is no origin; write e.g. https://app.example, with a port if it has one")
        if ANY in parsed and len(parsed) > 1:
            raise ValueError("* allows every origin; leave the others out, or leave * out")
        return parsed

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is not None:
            try:
                redis_url.parse(url)
            except InvalidDocumentError as error:
                raise ValueError("; ".join(str(fault) for fault in error.faults)) from error
        elif info.data.get("engine") == ():
            raise ValueError("missing; give it (or REDIS_URL) to find engines in Redis, or name them with --engine URL")
        return url

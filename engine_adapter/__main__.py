"""`specpilot engine`: vLLM's OpenAI server with the adapter in it; all other flags go to vLLM.

Checks its flags before vLLM loads for half a minute, sets the environment that the adapter reads in vLLM's processes,
and becomes vLLM (`exec`), so signals and exit status are vLLM's own.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from specpilot.engine_adapter import head_config, plugin_names, presets
from specpilot.engine_adapter.errors import InvalidSettingsError, UnsupportedEngineError
from specpilot.engine_adapter.model_files import missing_files_fault
from specpilot.engine_adapter.presets import Preset
from specpilot.engine_adapter.settings import PREFIX, AdapterSettings
from specpilot.engine_adapter.vllm import before_start, compat, config_facts, serve_flags, versions
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from specpilot.policy import standard_streams
from specpilot.policy.clean_text import secret
from specpilot.policy.errors import InvalidDocumentError, StoreUnavailableError
from specpilot.policy.names import K_LIMIT
from specpilot.policy.settings import fail, without_secrets
from specpilot.policy.store import Store
from specpilot.policy.text_files import read_text

PROGRAM = "specpilot engine"
_SECRET_FLAGS = ("--api-key", "--hf-token")
"""vLLM's flags that take a secret, the first one several."""
_SECRETS = ("--control-token", "--gateway-key", "--redis-url", *_SECRET_FLAGS)
_FLAG_OF = {"url": "--advertise-url", "id": "--engine-id"}
"""Flags of settings that are named otherwise."""
_CUT_TO = 6
"""Characters from which on a flag counts as the beginning of a longer one."""


def main(arguments: Sequence[str]) -> None:
    """Start vLLM with the adapter; does not return."""
    standard_streams.open_closed()
    try:
        command, environment = _vllm(arguments)
    except InvalidSettingsError as error:
        fail(PROGRAM, *error.faults)
    except UnsupportedEngineError as error:
        fail(PROGRAM, str(error))
    os.execve(command[0], command, environment)  # noqa: S606 - becoming vLLM is the purpose


def _vllm(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command of vLLM's server and its environment, after all checks."""
    options, vllm_flags = _parser().parse_known_args([_dashed(word) for word in arguments])
    preset = presets.preset(options.preset) if options.preset is not None else None
    _check_secret_flags(vllm_flags)
    if vllm_flags and not vllm_flags[0].startswith("-"):  # not shown: it may be the rest of a secret
        fault = "a word belongs to no flag; quote a value that holds white space, name the model with --model"
        raise InvalidSettingsError([fault])
    values = _settings_of(options)
    settings = _checked(values)
    if not settings.any_vllm:  # whose flags may resemble known ones
        own_flags = [name.replace("_", "-") for name in vars(options)]
        serve_flags.unknown(serve_flags.read(vllm_flags), own_flags)  # vLLM would name them after half a minute
    versions.check_installed(any_version=settings.any_vllm)
    model = options.model or (preset.target if preset else None)
    if model is None:
        raise InvalidSettingsError(["--model: is missing: name a folder, or a model that vLLM can load"])
    _check_model("--model", model)
    speculative = _speculative_config(options.speculative_config, options.drafter, options.k_max, preset)
    if preset is not None:
        vllm_flags += presets.flags_of(preset, vllm_flags)
        head = speculative.get("model") if speculative else None
        absent = missing_files_fault([model, *([str(head)] if head else [])])
        if absent is not None:
            raise InvalidSettingsError([f"{presets.FLAG}: {absent}"])
    if speculative:
        _check_steerable(speculative, vllm_flags, settings)
    _check_redis(settings.redis_url)
    _check_port(options.host, options.port)
    environment = dict(os.environ)
    vllm_flags = _with_clean_keys(vllm_flags, environment)
    environment["PYTHONSAFEPATH"] = "1"  # for the processes that vLLM starts
    environment |= {PREFIX + field.upper(): value for field, value in values.items()}
    environment[plugin_names.VARIABLE] = _plugins()
    command = [
        sys.executable,
        *versions.server_command(),
        *("--model", model, "--host", options.host, "--port", str(options.port)),
        *(("--speculative-config", json.dumps(speculative)) if speculative else ()),
        *vllm_flags,
    ]
    return command, environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="vLLM with live K. All other flags are passed on to vLLM. Settings without a flag come from the "
        f"environment, {PREFIX}POOL and so on.",
        allow_abbrev=False,
    )
    parser.add_argument(presets.FLAG, help="a published pair by name, see `specpilot presets`; other flags win over it")
    parser.add_argument("--model", help="target model: a folder, or a name that vLLM can load")
    parser.add_argument("--drafter", help="draft head: a folder, a name, or mtp: the model's own (short for its JSON)")
    parser.add_argument("--k-max", type=int, help="draft tokens per request with --drafter (the head's own, 7; mtp: 3)")
    parser.add_argument("--speculative-config", help="vLLM's own JSON, in place of --drafter and --k-max")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    for field, info in AdapterSettings.model_fields.items():
        text = f"{info.description} ({info.default})" if info.default else info.description
        action = "store_true" if info.annotation is bool else "store"
        parser.add_argument(_flag(field), help=text, action=action)
    return parser


def _dashed(word: str) -> str:
    """Return a flag with dashes for underscores, as vLLM reads its own; other words as they are."""
    flag, mark, value = word.partition("=")
    return flag.replace("_", "-") + mark + value if flag.startswith("--") and "." not in flag else word


def _warn(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: warning: {line}\n")


def _check_secret_flags(vllm_flags: Sequence[str]) -> None:
    """Raise `InvalidSettingsError` for a flag of a secret that is misspelt or joined to it.

    vLLM would print it with its value.
    """
    for flag in (word.partition("=")[0].replace("_", "-") for word in vllm_flags if word.startswith("--")):
        meant = [name for name in _SECRETS if len(flag) >= _CUT_TO and name.startswith(flag)]
        meant = meant or get_close_matches(flag, _SECRETS, 1, 0.8)
        joined = [name for name in _SECRETS if flag.startswith(name)]
        if (joined or meant) and flag not in _SECRETS:
            shown, remedy = (f"{joined[0]}...", joined[0]) if joined else (flag, meant[0])
            raise InvalidSettingsError([f"{shown}: there is no such flag; did you mean {remedy}?"])


def _with_clean_keys(vllm_flags: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return `vllm_flags` with vLLM's secrets as headers can carry them, and make the one in `environment` so."""
    flags: list[str] = []
    is_key, name = False, ""
    try:
        if environment.get("VLLM_API_KEY"):
            environment["VLLM_API_KEY"] = secret("VLLM_API_KEY", environment["VLLM_API_KEY"], _warn)
        for word in vllm_flags:
            flag, mark, key = word.partition("=")
            if word.startswith("--"):
                is_key = flag.replace("_", "-") in _SECRET_FLAGS  # vLLM takes either
                name = flag
                flags.append(f"{flag}={secret(flag, key, _warn)}" if is_key and mark else word)
            else:
                flags.append(secret(name, word, _warn) if is_key else word)
    except InvalidDocumentError as error:
        fail(PROGRAM, *(str(fault) for fault in error.faults))
    return flags


def _settings_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the adapter's settings that the flags state, by field: for its variables in vLLM's processes."""
    stated = vars(options) | {"url": _url(options), "id": options.engine_id}
    values = {field: stated.get(field) for field in AdapterSettings.model_fields}
    return {field: str(value) for field, value in values.items() if value is not None and value is not False}


def _checked(values: dict[str, str]) -> AdapterSettings:
    """Return the settings by `values`, of the flags, and the environment; a fault of a flag names the flag.

    An empty value counts as not stated, where a number is not asked for.
    """
    flags = {PREFIX + field.upper(): _flag(field) for field in values if field != "url"}
    try:
        return AdapterSettings.read(**{field: value for field, value in values.items() if value or _is_number(field)})
    except InvalidSettingsError as error:
        lines = [fault.partition(":") for fault in error.faults]
        raise InvalidSettingsError(flags.get(name, name) + mark + fault for name, mark, fault in lines) from error


def _is_number(field: str) -> bool:
    annotation = AdapterSettings.model_fields[field].annotation
    return not {int, float}.isdisjoint((annotation, *get_args(annotation)))


def _flag(field: str) -> str:
    """Return the flag of a setting."""
    return _FLAG_OF.get(field, "--" + field.replace("_", "-"))


def _plugins() -> str:
    """Return the plugins that vLLM should load; warn of plugins that no longer load because of the adapter."""
    value, switched_off = plugin_names.with_adapter(os.environ.get(plugin_names.VARIABLE))
    if switched_off:
        _warn(
            f"{plugin_names.VARIABLE} is {value}, without {', '.join(switched_off)}: named there, it may add routes to "
            f"the server; set {plugin_names.VARIABLE} to what is to load"
        )
    return value


def _url(options: argparse.Namespace) -> str:
    """Return the address at which the gateway reaches the engine: from flag, environment, or the listening address."""
    host = "127.0.0.1" if options.host in ("", "0.0.0.0", "::") else options.host  # noqa: S104 - compared, not bound
    listens = f"http://[{host}]:{options.port}" if ":" in host else f"http://{host}:{options.port}"
    return options.advertise_url or os.environ.get(PREFIX + "URL") or listens


def _speculative_config(
    text: str | None, drafter: str | None, k_max: int | None, preset: Preset | None = None
) -> dict[str, Any] | None:
    """Return vLLM's configuration: the user's JSON `text`, or that of a drafter; `None`: there is neither."""
    if text is not None:
        config = serve_flags.config({"speculative-config": text}, "speculative-config")
    else:
        if k_max is not None and k_max < 1:
            raise InvalidSettingsError([f"--k-max: is {k_max}; it must be at least 1"])
        head = _head_config(drafter) if drafter is not None else None
        if preset is not None:
            drafter, head, k_max = presets.drafter_of(preset, drafter, head, k_max)
        if drafter is None:
            return None
        config = head_config.speculative_config(drafter, head, k_max)
    if isinstance(model := config.get("model"), str):
        _check_model("--drafter" if text is None else "--speculative-config: model", model)
    return config


def _head_config(drafter: str) -> head_config.HeadConfig | None:
    """Return method and K of the head in the folder `drafter`; `None` if it is no folder on this machine."""
    path = Path(drafter) / "config.json"
    if not path.is_file():
        return None
    try:
        return head_config.read(json.loads(read_text(path)), drafter)
    except (OSError, ValueError) as error:
        raise InvalidSettingsError([f"--drafter: {path} cannot be read ({error})"]) from error


def _check_steerable(speculative: dict[str, object], vllm_flags: Sequence[str], settings: AdapterSettings) -> None:
    """Raise `InvalidSettingsError` if the adapter cannot steer an engine with these flags; the scheduler checks again.

    Where the runner is vLLM's choice, it is taken for V2, on which more methods are steered; in a build for CPUs V1.
    """
    stated = {field: value for field, value in speculative.items() if value is not None}
    k_max = serve_flags.whole(stated, "num_speculative_tokens", K_LIMIT, "--speculative-config: num_speculative_tokens")
    is_v2 = versions.runner_v2()
    if is_v2 is None:
        is_v2 = versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2) and not versions.is_for_cpus()
    method = speculative.get("method")
    if not isinstance(method, str):
        method = config_facts.STEERABLE_METHODS[0]  # vLLM detects it
    facts = ConfigFacts(
        head_config.MTP if method.endswith("_mtp") else method,  # vLLM's former names: mimo_mtp and so on
        is_v2=is_v2,
        k_max=k_max,
        has_table=bool(speculative.get("num_speculative_tokens_per_batch_size")),
        **before_start.parallel_facts(serve_flags.read(vllm_flags)),
    )
    faults = [*compat.drafter_faults(facts), *compat.parallel_faults(facts), *compat.setting_faults(facts, settings)]
    if faults:
        raise InvalidSettingsError(faults)


def _check_model(flag: str, name: str) -> None:
    """Raise `InvalidSettingsError` if `name` is clearly a path and there is no model."""
    path = Path(name)
    if (path.is_absolute() or name.startswith((".", "~"))) and not (path / "config.json").is_file():
        raise InvalidSettingsError([f"{flag}: no model in {name} (there is no config.json); name a model folder"])


def _check_redis(url: str | None) -> None:
    """Raise `InvalidSettingsError` for an invalid URL; warn if no Redis answers.

    Without Redis an engine serves without a controller, and registers when Redis is back.
    """
    if url is None:
        return
    try:
        store = Store(url)
    except InvalidDocumentError as error:
        raise InvalidSettingsError(f"--redis-url: {fault}" for fault in error.faults) from error
    try:
        store.ping()
        if (lacking := store.missing_rights()) is not None:
            _warn(f"--redis-url: {lacking}")
    except StoreUnavailableError as error:
        _warn(
            f"--redis-url: {error}; check {without_secrets(url)}. The engine starts all the same, serves without a "
            "controller, and registers when Redis answers"
        )
    finally:
        store.close()


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, UnicodeError) as error:  # UnicodeError: the host's name cannot be encoded for DNS
            reason = getattr(error, "strerror", error)
            fault = f"--port: {host}:{port} cannot be used ({reason}); choose another with --port"
            raise InvalidSettingsError([fault]) from error


if __name__ == "__main__":
    main(sys.argv[1:])

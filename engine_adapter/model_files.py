"""A model's files before vLLM loads for half a minute: its `config.json`, and whether the others can be had."""

import json
import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.policy.http_client import open_url
from specpilot.policy.settings import without_secrets
from specpilot.policy.text_files import read_text

REACHED_WITHIN_S = 5.0
"""Longest wait for the hub, in seconds."""

_DENIED = (401, 403)
_CONFIGS = ("config.json", "params.json")
"""Files with a model's configuration, the second in Mistral's own format."""


def missing_files_fault(names: Sequence[str], remedy: str = "") -> str | None:
    """Return a sentence about models that are not on this machine and cannot be downloaded; `None`: vLLM may start.

    `remedy`: what to do about it, in place of what `specpilot engine` can do.
    """
    absent = [name for name in names if not is_here(name)]
    if not absent:
        return None
    shown = " and ".join(absent) + (" is" if len(absent) == 1 else " are")
    named = "name folders with --model and --drafter"
    remedy = remedy or f"run `hf download {absent[0]}` where there is a network, or {named}"
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if offline.upper() in ("1", "ON", "YES", "TRUE"):  # as huggingface_hub reads it
        return f"{shown} not on this machine and HF_HUB_OFFLINE is set: {remedy}"
    for name in absent:
        fault = _hub_fault(name)
        if fault is not None:
            return f"{shown} not on this machine and {fault}: {remedy}"
    return None


def is_here(name: str) -> bool:
    """Whether `name` is a model folder, or a model in the Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - comes with vLLM, slow to import

    return (Path(name) / "config.json").is_file() or isinstance(try_to_load_from_cache(name, "config.json"), str)


def model_config(name: str) -> dict[str, Any]:
    """Return the configuration of the model in the folder `name`, or of this Hugging Face id.

    Raises `InvalidSettingsError` with the remedy if it cannot be had.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        path = next((folder / file for file in _CONFIGS if (folder / file).is_file()), None)
        if path is None:
            raise InvalidSettingsError([f"{name}: no model in this folder (there is no config.json)"])
    else:
        path = _downloaded(name)
    try:
        config = json.loads(read_text(path))
    except (OSError, RecursionError, ValueError) as error:
        raise InvalidSettingsError([f"{path}: cannot be read as JSON ({error})"]) from error
    if not isinstance(config, dict):
        raise InvalidSettingsError([f"{path}: must be a JSON object"])
    if not isinstance(config.get("architectures") or [], list):
        raise InvalidSettingsError([f"{path}: architectures is no list: name a model that vLLM can serve"])
    return config


def _downloaded(name: str) -> Path:
    """Return the place of the configuration of a Hugging Face id, from the cache or downloaded."""
    remedy = "download its config.json into a folder, and name the folder"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InvalidSettingsError([f"{name}: there is no such folder: name a model folder or a Hugging Face id"])
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 - comes with vLLM, slow to import
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError  # noqa: PLC0415
    except ImportError as error:
        fault = f"{name} is no folder, and huggingface_hub, which downloads models, is not installed: {remedy}"
        raise InvalidSettingsError([fault]) from error
    try:
        absent = missing_files_fault([name], remedy)
    except ValueError as error:
        raise InvalidSettingsError([f"{name}: is no folder and no Hugging Face id ({error})"]) from error
    if absent is not None:
        raise InvalidSettingsError([absent])
    for file in _CONFIGS:
        try:
            return Path(hf_hub_download(name, file))
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError, ValueError, HTTPException) as error:
            first = str(error).split("\n", maxsplit=1)[0]
            raise InvalidSettingsError([f"{name} cannot be read from the model hub ({first}): {remedy}"]) from error
    raise InvalidSettingsError([f"{name} has neither {' nor '.join(_CONFIGS)}: name another model"])


def _hub_fault(name: str) -> str | None:
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        with open_url(Request(f"{hub}/api/models/{name}"), timeout=REACHED_WITHIN_S):  # noqa: S310 - the hub's address
            return None
    except HTTPError as error:
        error.close()
        if error.code in _DENIED:
            return None  # gated: vLLM has the token, and reports faults of it
        return f"{without_secrets(hub)} does not have it ({error.code})"
    except (OSError, HTTPException, ValueError):
        return f"{without_secrets(hub)} cannot be reached"

"""Checks whether a model's files are on this machine or can be downloaded, before vLLM loads for half a minute."""

import os
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

from specpilot.policy.http_client import open_url
from specpilot.policy.settings import without_secrets

REACHED_WITHIN_S = 5.0
"""Longest wait for the hub, in seconds."""

_DENIED = (401, 403)


def missing_files_fault(names: Sequence[str]) -> str | None:
    """Return a sentence about models that are not on this machine and cannot be downloaded; `None`: vLLM may start."""
    absent = [name for name in names if not is_here(name)]
    if not absent:
        return None
    shown = " and ".join(absent) + (" is" if len(absent) == 1 else " are")
    remedy = f"run `hf download {absent[0]}` where there is a network, or name folders with --model and --drafter"
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

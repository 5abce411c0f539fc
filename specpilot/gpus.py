"""The GPUs of each engine of a machine: a share of the visible ones, so that no two engines use the first."""

import subprocess
from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASKED_WITHIN_S = 20.0
"""A driver that is not loaded yet takes seconds to answer."""


def visible(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that programs of this machine see, as CUDA names them; none if that cannot be determined."""
    if VISIBLE in environment:
        return [name.strip() for name in environment[VISIBLE].split(",") if name.strip()]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_WITHIN_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(listing.stdout.split())]


def share(devices: Sequence[str], engines: int, index: int) -> list[str]:
    """Return the `devices` of engine `index` of `engines`: neighbours, the same number for each engine.

    If there are more engines than devices, engines share them in turn.
    """
    count = len(devices) // engines
    if count:
        return list(devices[index * count : (index + 1) * count])
    return [devices[index % len(devices)]] if devices else []

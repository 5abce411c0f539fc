"""What a managed endpoint states by environment variables, made flags of `specpilot up`. Pure.

`SM_VLLM_FOO_BAR=v` is vLLM's flag `--foo-bar v`: `true` is the bare flag, `false` leaves it out, everything else, a
JSON object too, is one argument. Those that `specpilot up` has itself become its own; those that would open the engine
to others are refused. `SAGEMAKER_BIND_TO_PORT` is the port. Every setting of `specpilot up` can be given beside them,
as `SPECPILOT_UP_...`, which wins.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "SM_VLLM_"
PORT = "SAGEMAKER_BIND_TO_PORT"
MODEL_FOLDER = "/opt/ml/model"
PATHS = "/ping,/invocations"
OWN = {
    "MODEL": "model",
    "SERVED_MODEL_NAME": "served_model_name",
    "MAX_NUM_SEQS": "max_num_seqs",
}
"""What vLLM's flag of that name is called here."""
REFUSED = {
    "HOST": "the engine listens on the loopback; set SPECPILOT_UP_HOST for the gateway",
    "PORT": f"the engine's port is its own; set {PORT} for the gateway",
    "API_KEY": "the gateway checks keys; put them into Redis by the admin API",
    "SCHEDULER_CLS": "the scheduler is what steers K; leave it out",
    "MIDDLEWARE": "it would see the gateway's requests; leave it out",
}


@dataclass(frozen=True, slots=True)
class Stated:
    """What the environment asks for: settings of `specpilot up` by name, flags of vLLM, and what is wrong."""

    settings: Mapping[str, str]
    engine_args: str
    faults: tuple[str, ...]


def stated(environment: Mapping[str, str]) -> Stated:
    """Return what `environment` states."""
    settings = {"model": MODEL_FOLDER, "host": "0.0.0.0", "public_paths": PATHS}  # noqa: S104 - a container's one port
    if environment.get(PORT):
        settings["port"] = environment[PORT]
    flags: list[str] = []
    faults = []
    for name, value in sorted(environment.items()):
        option = name.removeprefix(PREFIX)
        if option == name or not option:
            continue
        if option in REFUSED:
            faults.append(f"{name}: {REFUSED[option]}")
        elif option in OWN:
            settings[OWN[option]] = value
        elif value.lower() == "true":
            flags.append(f"--{_kebab(option)}")
        elif value.lower() != "false":
            flags += [f"--{_kebab(option)}", value]
    return Stated(settings, shlex.join(flags), tuple(faults))


def _kebab(option: str) -> str:
    return option.lower().replace("_", "-")

"""The environment variables of a managed endpoint as flags of `specpilot up`. Pure.

`SM_VLLM_FOO_BAR=v` is vLLM's flag `--foo-bar v`: `true` is the flag alone, `false` omits it, any other value, also a
JSON object, is one argument. Flags that `specpilot up` has too are given to it. Flags that would open the engine to
other machines are rejected. `SAGEMAKER_BIND_TO_PORT` is the port, `SAGEMAKER_SAFE_PORT_RANGE` has those of the
controllers and the engines, `SM_NUM_GPUS` divided by the engines is the tensor parallelism. An endpoint of many models
(`SAGEMAKER_MULTI_MODEL`) is rejected: its routes are not served. Every setting of `specpilot up` can be given too, as
`SPECPILOT_UP_...`, and takes precedence.
All other `SM_*` and `SAGEMAKER_*`, of training jobs and other model servers, are ignored.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "SM_VLLM_"
PORT = "SAGEMAKER_BIND_TO_PORT"
PORTS = "SAGEMAKER_SAFE_PORT_RANGE"
GPUS = "SM_NUM_GPUS"
MULTI_MODEL = "SAGEMAKER_MULTI_MODEL"
MODEL_FOLDER = "/opt/ml/model"
PATHS = "/ping,/invocations"
SETTINGS = {
    "MODEL": "model",
    "SERVED_MODEL_NAME": "served_model_name",
    "MAX_NUM_SEQS": "max_num_seqs",
}
"""The setting of `specpilot up` for vLLM's flag of that name."""
REFUSED = {
    "HOST": "the engine listens on the loopback; set SPECPILOT_UP_HOST for the gateway",
    "PORT": f"the engine's port is its own; set {PORT} for the gateway",
    "API_KEY": "the gateway checks keys; put them into Redis by the admin API",
    "SCHEDULER_CLS": "the scheduler is what steers K; leave it out",
    "MIDDLEWARE": "it would see the gateway's requests; leave it out",
}


@dataclass(frozen=True, slots=True)
class Stated:
    """The contents of the environment: settings of `specpilot up` by name, flags of vLLM, and faults."""

    settings: Mapping[str, str]
    engine_args: str
    faults: tuple[str, ...]


def stated(environment: Mapping[str, str], engines: int = 1, controllers: int = 1) -> Stated:
    """Return the contents of `environment`, without white space around a value, for so many engines and controllers."""
    environment = {name: value.strip() for name, value in environment.items()}
    platform = _of_platform(environment, engines, controllers)
    settings, faults = dict(platform.settings), [*platform.faults]
    flags = [platform.engine_args] if platform.engine_args else []
    for name, value in sorted(environment.items()):
        option = name.removeprefix(PREFIX)
        if option == name or not option:
            continue
        if option in REFUSED:
            faults.append(f"{name}: {REFUSED[option]}")
        elif option in SETTINGS:
            settings[SETTINGS[option]] = value
        elif value.lower() == "true":
            flags.append(f"--{_kebab(option)}")
        elif value.lower() != "false":
            flags.append(shlex.join([f"--{_kebab(option)}", value]))
    return Stated(settings, " ".join(flags), tuple(faults))


def _of_platform(environment: Mapping[str, str], engines: int, controllers: int) -> Stated:
    """Return the settings from the variables that are not vLLM's."""
    settings = {"model": MODEL_FOLDER, "host": "0.0.0.0", "public_paths": PATHS}  # noqa: S104 - a container's one port
    faults = []
    if environment.get(PORT):
        settings["port"] = environment[PORT]
    if environment.get(PORTS):
        low, _, high = environment[PORTS].partition("-")
        needed = controllers + engines
        if low.isdecimal() and high.isdecimal() and int(high) - int(low) + 1 >= needed:
            settings |= {"admin_port": low, "engine_port": str(int(low) + controllers)}
        else:
            ports = f"{needed} ports or more, one for each controller and engine"
            faults.append(f"{PORTS}: {environment[PORTS]!r} is no range of {ports}; write e.g. 9000-9999")
    if environment.get(MULTI_MODEL, "").lower() == "true":
        faults.append(f"{MULTI_MODEL}: this container serves one model; give each model an endpoint of its own")
    gpus = environment.get(GPUS) or "1"
    if not gpus.isdecimal():
        faults.append(f"{GPUS}: {gpus!r} is no number of GPUs; write e.g. 4, or leave it out")
        gpus = "1"
    flags = ""
    if int(gpus) > 1 and (size := f"{PREFIX}TENSOR_PARALLEL_SIZE") not in environment:
        each, remainder = divmod(int(gpus), engines)
        flags = f"--tensor-parallel-size {each}" if each > 1 else ""
        if remainder:
            faults.append(
                f"{GPUS}: {gpus} GPUs cannot be divided among {engines} engines; change --engines, or set {size}"
            )
    return Stated(settings, flags, tuple(faults))


def _kebab(option: str) -> str:
    return option.lower().replace("_", "-")

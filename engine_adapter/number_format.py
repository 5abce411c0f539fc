"""The number format of an engine on a CPU: float32, unless the processor multiplies bfloat16 in hardware.

vLLM takes the format of the model's files, mostly bfloat16. A processor without instructions for it multiplies it in
software: with the demo pair a step takes 10 to 100 times as long as in float32 (two cores of an AMD EPYC of 2021). With
these instructions bfloat16 is faster than float32, and takes half of the memory.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specpilot.policy.text_files import read_text

FLAG: Final = "--dtype"
PLAIN: Final = "float32"
AUTO: Final = "auto"
"""vLLM's own choice: the format of the model's files."""

_INSTRUCTIONS: Final = {"x86_64": ("avx512_bf16", "amx_bf16"), "arm64": ("bf16", "sve_bf16")}
"""By architecture: PyTorch's names of the instruction sets that multiply bfloat16. Any one is enough."""
_SAME_AS: Final = {"aarch64": "arm64", "amd64": "x86_64"}

REASON: Final = "this processor does not multiply bfloat16 in hardware (AVX512_BF16, AMX; on Arm BF16)"


def multiplies_bfloat16(capabilities: Mapping[str, Any]) -> bool | None:
    """Whether a processor with these `torch.cpu.get_capabilities()` does so in hardware; `None`: not known."""
    architecture = str(capabilities.get("architecture", "")).lower()
    names = _INSTRUCTIONS.get(_SAME_AS.get(architecture, architecture))
    return None if names is None else any(capabilities.get(name) for name in names)


def lacks_bfloat16() -> bool:
    """Whether engines run on this machine's CPU, and it is known to multiply bfloat16 in software."""
    import torch  # noqa: PLC0415 - seconds to import

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type != "mps":  # vLLM's CPU build does not use Apple's
        return False
    of_processor = getattr(torch.cpu, "get_capabilities", None)  # from PyTorch 2.12 on
    return of_processor is not None and multiplies_bfloat16(of_processor()) is False


def fitting() -> str:
    """Return the `dtype` for an engine of the demo pair on this machine: `auto` or `float32`."""
    return PLAIN if lacks_bfloat16() else AUTO


def flags(model: str, vllm_flags: Sequence[str]) -> list[str]:
    """Return the flag for an engine of `model`; none if the user chose a format, or the model's own format fits.

    Quantised models keep vLLM's choice: their kernels take certain formats only.
    """
    named = {flag.partition("=")[0] for flag in vllm_flags}
    if named & {FLAG, "--quantization", "-q"} or _is_in_file(vllm_flags) or not _is_short(model):
        return []
    return [FLAG, PLAIN] if lacks_bfloat16() else []


def notes(vllm_config: Any) -> list[str]:
    """Return a note if an engine's format is not that of its files, or is slow on this processor."""
    model = vllm_config.model_config
    stored = getattr(getattr(model, "hf_config", None), "dtype", None)
    runs, files = (str(dtype).removeprefix("torch.") for dtype in (getattr(model, "dtype", None), stored))
    if PLAIN not in (runs, files) and lacks_bfloat16():
        return [f"the number format is {runs}: {REASON}, so steps take 10 to 100 times as long; use {FLAG} {PLAIN}"]
    if runs == PLAIN and files in ("bfloat16", "float16") and lacks_bfloat16():
        return [f"the number format is {PLAIN}, not the files' {files}: {REASON}; {FLAG} names another"]
    return []


def _is_short(model: str) -> bool:
    """Whether the model in the folder `model` may be stored in a format shorter than float32, without quantisation."""
    try:
        config = json.loads(read_text(Path(model) / "config.json"))
    except (OSError, ValueError):
        return True  # no folder of this machine: its format is not known
    if not isinstance(config, dict) or config.get("quantization_config") or config.get("compression_config"):
        return False
    return (config.get("dtype") or config.get("torch_dtype")) != PLAIN


def _is_in_file(vllm_flags: Sequence[str]) -> bool:
    """Whether vLLM's file of flags (`--config`) names a format."""
    for place, flag in enumerate(vllm_flags):
        name, _, value = flag.partition("=")
        if name == "--config":
            path = Path(value or (vllm_flags[place + 1] if place + 1 < len(vllm_flags) else ""))
            try:
                return re.search(r"^\s*(dtype|quantization)\s*:", read_text(path), re.MULTILINE) is not None
            except (OSError, UnicodeDecodeError):
                return False  # vLLM will say that it cannot be read
    return False

"""The number format of an engine on a CPU: float32, unless the processor multiplies bfloat16 in hardware.

vLLM takes the format of the model's files, mostly bfloat16. A processor without instructions for it multiplies it in
software: with the demo pair a step takes 10 to 100 times as long as in float32 (two cores of an AMD EPYC of 2021). With
these instructions bfloat16 is faster than float32, and takes half of the memory.
"""

from collections.abc import Mapping
from typing import Any, Final

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.model_files import model_config

FLAG: Final = "--dtype"
PLAIN: Final = "float32"
AUTO: Final = "auto"
"""vLLM's own choice: the format of the model's files, and bfloat16 for float32."""

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


def fitting(model: str = "") -> str:
    """Return the `dtype` for an engine of `model`, a folder or a hub's name, on this machine: `auto` or `float32`.

    A quantised model keeps vLLM's choice: its kernels take certain formats only. A model whose configuration cannot be
    read counts as not quantised. For a model in float32 vLLM's choice is bfloat16 too (`_resolve_auto_dtype`).
    """
    return AUTO if not lacks_bfloat16() or _is_quantised(model) else PLAIN


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


def _is_quantised(model: str) -> bool:
    """Whether a model, in a folder or of a hub, is known to be quantised."""
    try:
        config = model_config(model)
    except InvalidSettingsError:
        return False  # vLLM says what is wrong with it
    return any(map(config.get, ("quantization_config", "compression_config")))

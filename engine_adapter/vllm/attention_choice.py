"""Which attention backend vLLM would choose before it starts: from the target's `config.json` and vLLM's flags. Pure.

Other backends than MLA's read decodes of any length, so none of them is refused. The order is that of vLLM 0.32
(`_get_backend_priorities` in `platforms/cuda.py`).
"""

from collections.abc import Mapping
from typing import Any

from specpilot.engine_adapter.vllm import model_facts, serve_flags
from specpilot.engine_adapter.vllm.model_facts import Config
from specpilot.engine_adapter.vllm.serve_flags import Flags

_FEW_HEADS = 16
"""Attention heads of a GPU up to which vLLM prefers FlashInfer for sparse MLA in bfloat16 on Blackwell."""
_FLASHINFER_MLA_DIMS = (64, 128, 192)


def backends(target: Config, speculative: Mapping[str, Any], flags: Flags) -> dict[str, str]:
    """Return the attention backends by what chooses them: the user, or for MLA the generation of the GPU."""
    named = flags.get("attention-backend") or serve_flags.config(flags, "attention-config").get("backend")
    chosen = {"--attention-backend": named, "attention_backend": speculative.get("attention_backend")}
    by_chooser = {flag: str(backend).upper() for flag, backend in chosen.items() if backend is not None}
    text = model_facts.text_of(target)
    if named is not None or not model_facts.uses_mla(target) or "compress_ratios" in text:
        return by_chooser
    dtype, is_glm = str(flags.get("kv-cache-dtype", "auto")), text.get("model_type") == "glm_moe_dsa"
    stored = target.get("quantization_config") or {}
    is_stored_short = bool(stored.get("kv_cache_scheme") or stored.get("kv_cache_quant_algo"))
    is_short = is_stored_short if dtype == "auto" else dtype not in ("bfloat16", "float16")
    if "index_topk" in text:
        heads = int(text.get("num_attention_heads") or 0) // max(1, serve_flags.whole(flags, "tensor-parallel-size", 1))
        is_flashinfer = is_short or heads <= _FEW_HEADS or (is_glm and dtype == "auto")
        hopper = "FLASHMLA_SPARSE" if is_short else "FLASH_ATTN_MLA_SPARSE"
        return by_chooser | {
            "Hopper": hopper,
            "Blackwell": "FLASHINFER_MLA_SPARSE" if is_flashinfer else "FLASHMLA_SPARSE",
        }
    hopper = "FLASHMLA" if is_short else "FLASH_ATTN_MLA"
    is_flashinfer = text.get("qk_nope_head_dim") in _FLASHINFER_MLA_DIMS
    return by_chooser | {"Hopper": hopper, "Blackwell": "FLASHINFER_MLA" if is_flashinfer else "CUTLASS_MLA"}

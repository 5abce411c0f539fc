"""Fields of published models' `config.json` that decide whether an engine is steered, by a name of ours.

`asked` is the answer of `specpilot check` where they are folders (the fixture `models`).
"""

import json
from typing import Any

from specpilot.engine_adapter import check
from specpilot.engine_adapter.check import Answer

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072}
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "num_attention_heads": 128, "max_position_embeddings": 163840}
DEEPSEEK = MLA | {"num_nextn_predict_layers": 1}
SPARSE = DEEPSEEK | {"index_topk": 2048}
VISION: dict[str, Any] = {"vision_config": {}}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": LLAMA,
    "llama-3.1-8b-eagle3": {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "llama-3.1-8b"},
        },
        "transformer_layer_config": {"model_type": "llama", "max_position_embeddings": 131072},
    },
    "llama-3.1-8b-eagle3-of-2048": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "max_position_embeddings": 2048,
    },
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_position_embeddings": 40960,
    },
    "qwen3-8b-of-100-tokens": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 100},
    "qwen3-8b-peagle": {
        "speculators_model_type": "peagle",
        "speculators_config": {
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
            "verifier": {"name_or_path": "qwen3-8b"},
        },
        "transformer_layer_config": {"model_type": "qwen3", "max_position_embeddings": 40960},
        "mask_token_id": 151669,
    },
    "gpt-oss-120b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 131072,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    },
    "gpt-oss-120b-eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "max_position_embeddings": 131072,
    },
    "gpt-oss-20b-p-eagle": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "max_position_embeddings": 131072,
        "ptd_token_id": 201087,
    },
    "glm-4.5": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": 160,
        "num_nextn_predict_layers": 1,
    },
    "glm-4.5-without-mtp": {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_nextn_predict_layers": 0,
    },
    "glm-4.7-flash": MLA
    | {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "num_nextn_predict_layers": 1},
    "glm-5": SPARSE | {"architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa"},
    "mimo-7b": {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_nextn_predict_layers": 1,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "mimo-v2": {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "sliding_window": 128,
    },
    "ernie-4.5": {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "num_nextn_predict_layers": 1,
    },
    "hy3": {"architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "num_nextn_predict_layers": 1},
    "deepseek-v3": DEEPSEEK | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
    "deepseek-v3.2": SPARSE | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"},
    "deepseek-v4": {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "num_nextn_predict_layers": 1,
        "compress_ratios": [4, 128],
        "head_dim": 512,
        "index_topk": 512,
    },
    "kimi-k2.5": VISION
    | {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": MLA | {"model_type": "deepseek_v3", "num_nextn_predict_layers": 0},
    },
    "kimi-k2.5-eagle3-mla": MLA | {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"},
    "qwen3-next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention"],
    },
    "qwen3.5": VISION
    | {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "mtp_num_hidden_layers": 1,
            "num_experts": 512,
            "layer_types": ["linear_attention", "full_attention"],
        },
    },
    "qwen3.5-without-mtp": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": None,
    },
    "nemotron-3-super": {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "num_nextn_predict_layers": 1,
        "hybrid_override_pattern": "MEM*E",
    },
    "step-3.7": VISION
    | {
        "architectures": ["Step3p7ForConditionalGeneration"],
        "model_type": "step3p7",
        "text_config": {"model_type": "step3p5", "num_nextn_predict_layers": 3, "sliding_window": 512},
    },
    "inkling": VISION
    | {
        "architectures": ["InklingForConditionalGeneration"],
        "model_type": "inkling_mm_model",
        "mtp_config": {"num_nextn_predict_layers": 8},
        "text_config": {"model_type": "inkling_model"},
    },
    "gemma-4-31b": VISION | {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"},
    "gemma-4-31b-assistant": {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "text_config": {"model_type": "gemma4_text", "sliding_window": 1024},
    },
    "qwen3-8b-dflash-2": {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "block_size": 16},
    "qwen3-8b-speculators-dflash-2": {
        "speculators_model_type": "dflash2",
        "mask_token_id": 4,
        "aux_hidden_state_layer_ids": [2, 18, 33],
        "transformer_layer_config": {"model_type": "qwen3", "hidden_size": 4096},
    },
    "laguna-dflash": {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16},
    "qwen3-8b-semi": {"architectures": ["DSparkDraftModel"], "model_type": "qwen3", "block_size": 7},
    "gemma-4-dspark": {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"},
    "qwen3-8b-dspark": {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "block_size": 7},
    "mistral-medium": {  # the fields of Mistral's own params.json
        "dim": 12288,
        "n_layers": 88,
        "max_position_embeddings": 262144,
        "vision_encoder": {"image_token_id": 10},
    },
    "mistral-medium-eagle": {"dim": 12288, "n_layers": 2, "max_position_embeddings": 262144},
    "mistral-small-4-eagle": {"dim": 4096, "n_layers": 2, "qk_nope_head_dim": 64, "kv_lora_rank": 256},
}


def asked(model: str, speculative: dict[str, Any] | None, *flags: str, version: str = "0.32.0") -> Answer:
    words = [] if speculative is None else ["--speculative-config", json.dumps(speculative)]
    return check.answer_to(model, [*words, *flags], version=version)


def mtp(k: int) -> dict[str, Any]:
    return {"method": "mtp", "num_speculative_tokens": k}


def drafted(method: str, head: str, k: int, **more: Any) -> dict[str, Any]:
    return {"method": method, "model": head, "num_speculative_tokens": k, **more}

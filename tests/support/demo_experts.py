"""The demo target and its MTP head as a mixture of experts, of vLLM's class for GLM-4.5.

Each expert is the demo's own MLP and the router sends each token to one of them, so the text is that of the demo.
"""

import json
import shutil
from pathlib import Path

from tests.support.stack import DEMO_MODEL

EXPERTS = 4


def written(folder: Path) -> Path:
    """Write the model into `folder`, and return it; `{"method": "mtp"}` drafts with its head."""
    import torch  # noqa: PLC0415 - tests import this module, and PyTorch takes seconds
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    target, head = (load_file(DEMO_MODEL / part) for part in ("target/model.safetensors", "mtp/mtp.safetensors"))
    config = json.loads((DEMO_MODEL / "target" / "config.json").read_text())
    layers = config["num_hidden_layers"]
    of_head = f"model.layers.{layers}."
    moved = {
        "token_layernorm": "enorm",
        "hidden_layernorm": "hnorm",
        "input_proj": "eh_proj",
        "final_layernorm": "shared_head.norm",
    }
    tensors = dict(target)
    for name, tensor in head.items():
        part = name.removeprefix("model.mtp_layers.0.")
        if part != name and not part.endswith("bias"):
            first, _, rest = part.partition(".")
            # MiMo's projection reads the states before the embeddings, GLM's after them.
            swapped = torch.cat(tensor.chunk(2, dim=1)[::-1], dim=1) if first == "input_proj" else tensor
            tensors[f"{of_head}{moved.get(first, first)}.{rest}"] = swapped
    generator = torch.Generator().manual_seed(0)
    experts = {}
    for name in [name for name in tensors if ".mlp." in name]:
        layer, part = name.split(".mlp.")
        experts |= {f"{layer}.mlp.experts.{at}.{part}": tensors[name].clone() for at in range(EXPERTS)}
        experts[f"{layer}.mlp.shared_experts.{part}"] = torch.zeros_like(tensors[name])
        router = torch.randn(EXPERTS, config["hidden_size"], generator=generator)
        experts |= {
            f"{layer}.mlp.gate.weight": router,
            f"{layer}.mlp.gate.e_score_correction_bias": torch.zeros(EXPERTS),
        }
        del tensors[name]
    added = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": config["intermediate_size"],
        "first_k_dense_replace": 0,
        "num_nextn_predict_layers": 1,
        "rope_parameters": config["rope_parameters"] | {"partial_rotary_factor": 1.0},
        "partial_rotary_factor": 1.0,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | added))
    for file in (DEMO_MODEL / "target").glob("*token*"):
        shutil.copy(file, folder)
    shutil.copy(DEMO_MODEL / "target" / "generation_config.json", folder)
    save_file(
        {name: item.contiguous() for name, item in (tensors | experts).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder

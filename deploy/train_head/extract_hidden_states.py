"""Runs the target over prepared rows and writes the hidden states for training, in the layout of `speculators`.

For targets that fit into `transformers` on this machine. For larger ones `speculators generate-offline-data` uses vLLM.
Writes `DATA/hidden_states/hs_<row>.safetensors` with `token_ids` [tokens] and `hidden_states` [tokens, layers + 1,
hidden]: the input of each of `--layers`, then the input of the final norm. Existing rows are skipped. The file
`DATA/hidden_states/made_from.json` names their target and layers; a run with others is rejected.

    python deploy/train_head/extract_hidden_states.py --target TARGET --data DATA --layers 2 4 5
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from datasets import load_from_disk
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def states_of(model: torch.nn.Module, token_ids: torch.Tensor, layers: list[int]) -> torch.Tensor:
    """[tokens, layers + 1, hidden]: the target's states at each token. The last are taken before the final norm."""
    before_norm: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _module, inputs: before_norm.append(inputs[0]))
    try:
        states = model(token_ids[None], output_hidden_states=True, use_cache=False).hidden_states
    finally:
        hook.remove()
    return torch.stack([*(states[layer][0] for layer in layers), before_norm[0][0]], dim=1)


def check_made_from(folder: Path, made_from: dict[str, object]) -> None:
    """End the program when `folder` holds states that were made from anything else."""
    if not any(folder.glob("hs_*.safetensors")):
        return
    record = folder / "made_from.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    differs = [f"--{name} ({known.get(name, 'unknown')})" for name in made_from if known.get(name) != made_from[name]]
    if differs:
        raise SystemExit(f"--data: {folder} holds states of another {', '.join(differs)}; remove it to extract again")


def main() -> None:
    """Extract every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder that `speculators prepare-data` wrote")
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="as --target-layer-ids of the training")
    arguments = parser.parse_args()
    folder = arguments.data / "hidden_states"
    made_from = {"target": arguments.target, "layers": arguments.layers}
    check_made_from(folder, made_from)
    model = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.bfloat16).eval()
    if max(arguments.layers) >= model.config.num_hidden_layers or min(arguments.layers) < 1:
        raise SystemExit(f"--layers: each must be at least 1 and below {model.config.num_hidden_layers}")
    folder.mkdir(exist_ok=True)
    (folder / "made_from.json").write_text(json.dumps(made_from) + "\n")
    rows = load_from_disk(str(arguments.data)).with_format("torch")
    for number, row in enumerate(rows):
        path = folder / f"hs_{number}.safetensors"
        if not path.exists():
            states = states_of(model, row["input_ids"], arguments.layers)
            part = path.with_suffix(".part")
            save_file({"token_ids": row["input_ids"], "hidden_states": states.contiguous()}, part)
            part.replace(path)
    print(f"{len(rows)} rows in {folder}")


if __name__ == "__main__":
    main()

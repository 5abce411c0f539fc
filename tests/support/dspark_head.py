"""A DSpark head for the demo target: the demo's DFlash head with a Markov head of small random weights."""

import json
import shutil
from pathlib import Path

from tests.support.stack import DEMO_MODEL

RANK = 8
"""Of the transition from one draft token to the next."""


def written(folder: Path, *, sample_from_anchor: bool = False) -> Path:
    """Write the head into `folder`, and return it.

    With `sample_from_anchor` the block has no place for the token before the drafts, for which DFlash was trained, so
    hardly any of its drafts is accepted.
    """
    import torch  # noqa: PLC0415 - tests import this module, and PyTorch takes seconds
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    config = json.loads((DEMO_MODEL / "dflash" / "config.json").read_text())
    added = {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "sample_from_anchor": sample_from_anchor,
        "dspark_noise_token_id": config["dflash_config"]["mask_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config | added))
    for file in (DEMO_MODEL / "dflash").glob("*token*"):
        shutil.copy(file, folder)
    [weights] = (DEMO_MODEL / "dflash").glob("*.safetensors")
    size, generator = (config["vocab_size"], RANK), torch.Generator().manual_seed(0)
    markov = {f"markov_head.markov_w{at}.weight": 0.02 * torch.randn(size, generator=generator) for at in (1, 2)}
    save_file(load_file(weights) | markov, folder / "model.safetensors", metadata={"format": "pt"})
    return folder

"""The other scripts of the recipe, in the parts that need neither the `speculators` package nor a GPU.

`datasets` and `speculators` belong to the recipe's own environment. In their place stand a few lines that have what the
scripts use of them, so that what is tested is the scripts' own work.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.demo_model import DEMO_MODEL
from tests.support.stack import ROOT

SCRIPTS = ROOT / "deploy" / "train_head"
TARGET = DEMO_MODEL / "target"
pytestmark = pytest.mark.extended("training")
ROWS = [[5, 6, 7, 8], [9, 10]]


def run(name: str, *arguments: str, instead: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script; modules in the folder `instead` come before installed ones."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"} | ({"PYTHONPATH": str(instead)} if instead else {})
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_demo_prompts_are_of_all_classes_seeded_and_not_too_long(tmp_path: Path) -> None:
    outs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for out in outs:
        done = run("demo_prompts.py", "--per-class", "4", "--longest", "300", "--out", str(out))
        assert done.returncode == 0, done.stderr
        assert "12 prompts in" in done.stdout
    one, two = (out.read_text() for out in outs)
    assert one == two
    prompts = [json.loads(line)["messages"] for line in one.splitlines()]
    assert len({json.dumps(prompt) for prompt in prompts}) == 12
    for prompt in prompts:
        assert prompt[-1]["role"] == "user"
        assert sum(len(part["content"]) for part in prompt) <= 300


DATASETS = f"""
class Rows(list):
    def with_format(self, kind):
        import torch
        assert kind == "torch"
        return Rows({{"input_ids": torch.tensor(row)}} for row in {ROWS})

def load_from_disk(path):
    return Rows()
"""

CHECK = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
for number in (0, 1):
    row = load_file(Path(sys.argv[2]) / "hidden_states" / f"hs_{number}.safetensors")
    states, ids = row["hidden_states"], row["token_ids"]
    assert states.shape == (len(ids), 3, model.config.hidden_size), states.shape
    with torch.inference_mode():
        want = model(ids[None], output_hidden_states=True)
        assert torch.equal(states[:, 0], want.hidden_states[1][0])
        assert torch.equal(states[:, 1], want.hidden_states[2][0])
        assert torch.equal(model.lm_head(model.model.norm(states[:, 2])), want.logits[0])
"""


def test_hidden_states_are_those_that_enter_the_layers_and_the_final_norm(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(DATASETS)
    data = tmp_path / "data"
    data.mkdir()
    arguments = ["--target", str(TARGET), "--data", str(data), "--layers", "1", "2"]
    done = run("extract_hidden_states.py", *arguments, instead=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 rows in" in done.stdout
    checked = subprocess.run(
        [sys.executable, "-c", CHECK, str(TARGET), str(data)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    kept = data / "hidden_states" / "hs_0.safetensors"
    kept.write_bytes(b"there")
    assert run("extract_hidden_states.py", *arguments, instead=tmp_path).returncode == 0
    assert kept.read_bytes() == b"there"  # what was extracted is left
    done = run("extract_hidden_states.py", *arguments, "--target", "org/other", "--layers", "1", "3", instead=tmp_path)
    assert done.returncode == 1
    assert f"holds states of another --target ({TARGET}), --layers ([1, 2]); remove it" in done.stderr
    assert kept.read_bytes() == b"there"


def test_states_whose_target_nobody_knows_are_not_taken_for_another_ones(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(DATASETS)
    kept = tmp_path / "hidden_states" / "hs_0.safetensors"
    kept.parent.mkdir()
    kept.write_bytes(b"there")
    done = run(
        "extract_hidden_states.py", "--target", str(TARGET), "--data", str(tmp_path), "--layers", "1", instead=tmp_path
    )
    assert done.returncode == 1
    assert "holds states of another --target (unknown), --layers (unknown)" in done.stderr


def test_a_layer_that_the_target_has_not_is_said(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text(DATASETS)
    arguments = ["--target", str(TARGET), "--data", str(tmp_path), "--layers", "1", "99"]
    done = run("extract_hidden_states.py", *arguments, instead=tmp_path)
    assert done.returncode == 1
    assert "--layers: each must be at least 1 and below" in done.stderr


CLI = """
class Trainer: pass

def main(config):
    import torch
    from speculators.train import trainer
    made = Trainer()
    made.setup_trainer()
    torch.accelerator.synchronize(0)
    print(config, made.device_type, made.is_set_up, trainer.get_local_rank())
"""
TRAINER = """
def get_local_rank():
    raise RuntimeError("Cannot access accelerator device when none is available")

class Trainer:
    def setup_trainer(self):
        self.is_set_up = True
"""
CONFIG = """
class TrainConfig:
    @staticmethod
    def resolve(flags):
        return flags
"""
TORCH = """
class device(str): pass

class accelerator:
    @staticmethod
    def is_available():
        import os
        return "WITH_GPU" in os.environ

    @staticmethod
    def synchronize(*_):
        raise RuntimeError("no accelerator")
"""


def stand_in(folder: Path) -> Path:
    """What `train_on_cpu.py` uses of `speculators` 0.9.0 and of torch."""
    train = folder / "speculators" / "train"
    train.mkdir(parents=True)
    for path in (folder / "speculators" / "__init__.py", train / "__init__.py"):
        path.write_text("")
    for name, text in (("cli", CLI), ("trainer", TRAINER), ("config", CONFIG)):
        (train / f"{name}.py").write_text(text)
    (folder / "torch.py").write_text(TORCH)
    return folder


def test_training_on_a_cpu_replaces_what_asks_for_an_accelerator_and_passes_the_flags_on(tmp_path: Path) -> None:
    done = run("train_on_cpu.py", "--epochs", "2", instead=stand_in(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--epochs', '2'] cpu True cpu"


def test_where_there_is_an_accelerator_the_package_is_named_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WITH_GPU", "1")
    done = run("train_on_cpu.py", instead=stand_in(tmp_path))
    assert done.returncode == 1
    assert "use `speculators train`" in done.stderr

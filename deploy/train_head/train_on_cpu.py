"""`speculators train` on a machine without an accelerator: the package's own model, data, loss, loop and checkpoints.

`speculators` 0.9.0 trains P-EAGLE's computations on a CPU as they are; what stops it is its `Trainer`, which moves
the model to an accelerator by its number ("Cannot access accelerator device when none is available") and waits for it
to finish. Three names are replaced here, nothing else. On a machine with a GPU call `speculators train` with these
flags.

    python deploy/train_head/train_on_cpu.py --verifier-name-or-path TARGET --data-path DATA ...
"""

from __future__ import annotations

import sys

import torch
from speculators.train import cli, trainer
from speculators.train.config import TrainConfig


class CpuTrainer(trainer.Trainer):
    """The package's trainer, with the CPU for its device."""

    def setup_trainer(self) -> None:
        """Set the device that mixed precision is for; the package takes CUDA where it finds nothing."""
        self.device_type = "cpu"
        super().setup_trainer()


def main() -> None:
    """Train as the flags say."""
    if torch.accelerator.is_available():
        raise SystemExit("this machine has an accelerator: use `speculators train` with the same flags")
    trainer.get_local_rank = lambda: torch.device("cpu")
    torch.accelerator.synchronize = lambda *_: None
    cli.Trainer = CpuTrainer
    cli.main(TrainConfig.resolve(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""Simulated machines on which a context costs time, each with another kind of attention kernel. Pure; not measured.

The kernel decides what a context of c tokens costs with K draft tokens:

    H200Context      read once    once for all tokens of a request: c, and the drafter's layers if it has drafts
    B200Latent       arithmetic   each token anew: (1 + K) c
    CpuContext       arithmetic   each token anew: (1 + K) c
    UnsplitContext   unsplit      c, and several times as much if any request of the step has drafts to verify

The prices follow from a model's shape and a machine's data sheet:

- `H200Context`: 131 kB of keys and values per token (an 8B Llama) at 4 TB/s, a drafter of an eighth of the layers.
- `B200Latent`: latent attention of 61 layers with all 128 heads on one GPU (data parallel attention): 17 Mflop for each
  token of context and each token of the step, at 1 Pflop/s; about as long as reading 70 kB once takes.
- `CpuContext`: the step times of `step_times.cpu_step_s`. A draft token at 30,000 tokens of context takes twice the
  time of one at none, as with an 8B Llama: 0.5 Mflop for each token of context to 16 Gflop for its weights.
- `UnsplitContext`: `H200Context` on a GPU whose kernel walks a context in one thread block once a request has several
  tokens: 7 to 23 times as long were measured on several GPUs (vllm-project/flash-attention#190, vllm#51995).
"""

from dataclasses import dataclass, field

from tests.simulation.h200_plant import H200Plant
from tests.simulation.plant import Work
from tests.simulation.step_times import cpu_catch_up_s, cpu_step_s

_READ_S, _DRAFTER_READ_S = 33e-9, 33e-9 / 8
_UNSPLIT = 8.0
_LATENT_S, _CPU_S = 17e-9, 1e-4 / 30_000


@dataclass(frozen=True, slots=True)
class H200Context:
    """The measured H200, where a context is read once by the target and once by the drafter."""

    machine: H200Plant = field(default_factory=H200Plant)
    reads_prompts_apart: bool = True

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step on the GPU."""
        return self.machine.device_s(work) + _READ_S * work.context + _DRAFTER_READ_S * work.drafted_context

    def host_s(self, work: Work) -> float:
        """Return the seconds of the host to launch a step."""
        return self.machine.host_s(work)


@dataclass(frozen=True, slots=True)
class UnsplitContext(H200Context):
    """The same where a step that verifies reads its contexts slowly."""

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step on the GPU."""
        slow = _READ_S * (_UNSPLIT - 1.0) * work.context if work.draft_context else 0.0
        return H200Context.device_s(self, work) + slow


@dataclass(frozen=True, slots=True)
class B200Latent:
    """One of several B200 with a mixture of experts of 600B parameters and a sequential head."""

    reads_prompts_apart: bool = False

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step on the GPU."""
        attended = work.context + work.draft_context
        drafter = 0.4e-3 * work.width
        return 14e-3 + 2e-5 * (work.decodes + work.verified) + 1e-5 * work.prefill + _LATENT_S * attended + drafter

    def host_s(self, work: Work) -> float:
        """Return 0: the host takes less time than the device."""
        del work
        return 0.0


@dataclass(frozen=True, slots=True)
class CpuContext:
    """A processor's cores, which compute each token of a step anew for each token of its context."""

    reads_prompts_apart: bool = False

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step."""
        seconds = cpu_step_s(work.decodes, work.verified, work.slots, work.prefill, 0)
        seconds += _CPU_S * (work.context + work.draft_context)
        return seconds + (cpu_catch_up_s(work.read) if work.read else 0.0)

    def host_s(self, work: Work) -> float:
        """Return 0: the host takes no time of its own."""
        del work
        return 0.0

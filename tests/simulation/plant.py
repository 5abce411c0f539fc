"""A simulated machine: the host's time to launch a step, and the device's time to run it. Pure.

In vLLM's asynchronous loop a step takes max(G, H): G on the device, H on the host, which launches it kernel by kernel.
`OneTime` is a machine whose host takes no time of its own: a processor, which does both, or a GPU of which only the
time of a step is known.
"""

from typing import NamedTuple, Protocol

from tests.simulation.step_times import CatchUpTime, StepTime


class Work(NamedTuple):
    """The work of one step: running decodes, tokens verified for them, slots of its drafter, prefilled tokens.

    `context` is the sum of the lengths of its sequences, `read` the number of positions that its drafter reads without
    drafting from them, `prompts` the number of requests that it prefills. `is_uniform`: all decodes have equally many
    tokens in it. `width` is the largest K that its drafter drafts. `draft_context` is the sum, over the draft tokens to
    verify, of their requests' context, `drafted_context` that of the contexts of the requests that verify any.
    """

    decodes: int
    verified: int
    slots: int = 0
    prefill: int = 0
    context: int = 0
    read: int = 0
    prompts: int = 0
    is_uniform: bool = True
    width: int = 0
    draft_context: int = 0
    drafted_context: int = 0


class Plant(Protocol):
    """A machine. `reads_prompts_apart`: the time of prefill does not include its drafter's pass over a prompt."""

    @property
    def reads_prompts_apart(self) -> bool:
        """Whether `read` counts prompts in steps without drafts."""
        ...

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step on the device."""
        ...

    def host_s(self, work: Work) -> float:
        """Return the seconds of the host to launch a step."""
        ...


class OneTime:
    """A machine whose steps take `step_s`, plus `catch_up_s` for rows that they catch up."""

    reads_prompts_apart = False

    def __init__(self, step_s: StepTime, catch_up_s: CatchUpTime) -> None:
        self._step_s = step_s
        self._catch_up_s = catch_up_s

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step."""
        seconds = self._step_s(work.decodes, work.verified, work.slots, work.prefill, work.context)
        return seconds + (self._catch_up_s(work.read) if work.read else 0.0)

    def host_s(self, work: Work) -> float:
        """Return 0: the host takes no time of its own."""
        del work
        return 0.0


class Sequential(OneTime):
    """A machine whose drafter runs one pass for each token of a draft, like an EAGLE or an MTP head.

    A pass takes `pass_s`, and `row_s` for each row: the first reads the step's positions of the requests in its batch,
    each other one a token of each. `is_in_every_step`: the first pass runs also where nothing is drafted.
    """

    def __init__(
        self,
        step_s: StepTime,
        catch_up_s: CatchUpTime,
        pass_s: float,
        row_s: float,
        *,
        is_in_every_step: bool = False,
    ) -> None:
        super().__init__(step_s, catch_up_s)
        self._pass_s, self._row_s, self._is_in_every_step = pass_s, row_s, is_in_every_step

    def device_s(self, work: Work) -> float:
        """Return the seconds of a step."""
        seconds = super().device_s(work._replace(slots=0))
        if work.width:
            batch = work.slots // work.width  # of the drafter
            rows = work.verified + work.prefill - max(0, work.decodes - batch) + (work.width - 1) * batch
            return seconds + work.width * self._pass_s + rows * self._row_s
        if self._is_in_every_step:
            return seconds + self._pass_s + (work.verified + work.prefill) * self._row_s
        return seconds

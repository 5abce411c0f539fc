"""The adapter's state of one drafter: its backlog, and the step under way as the scheduler planned it.

The wrappers (`vllm.v1.installation`) share this object. It lives as long as the drafter; vLLM's own objects get no
attributes.
"""

from typing import Any
from weakref import WeakKeyDictionary

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.scheduler_output import places_of
from specpilot.engine_adapter.vllm.v1.backlog import Backlog


class Drafting:
    """A steered drafter's backlog, and the step under way.

    `plan` is the plan of the step, `None` from another scheduler. `is_plain`: the step runs as without speculation.
    `state` is vLLM's `ExecuteModelState` between the target's pass and sampling, while it samples and drafts. `batch`
    are the step's requests in the runner's order.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.plan: StepPlan | None = None
        self.is_plain = False
        self.state: Any = None
        self.batch: list[str] = []

    def places(self) -> list[int] | None:
        """Return the places in the batch of the requests in the drafter's batch; `None`: all requests."""
        if self.state is None or self.plan is None or not self.plan.left_out:
            return None
        return places_of(self.batch, self.plan.left_out)


_OF: WeakKeyDictionary[Any, Drafting] = WeakKeyDictionary()


def attach(drafter: Any, drafting: Drafting) -> None:
    """Keep `drafting` for as long as vLLM's `drafter` lives."""
    _OF[drafter] = drafting


def of_drafter(drafter: Any) -> Drafting | None:
    """Return the state of a drafter; `None` if it is not steered, or is no drafter."""
    return _OF.get(drafter) if drafter is not None else None


def of_runner(runner: Any) -> Drafting | None:
    """Return the state of a model runner's drafter; `None` if it has no steered drafter."""
    return of_drafter(getattr(runner, "drafter", None))


def use_plain_embeddings(drafter: Any) -> None:
    """Make a drafter that shares the target's embeddings use them without LoRA.

    LoRA's kernels read the rows of the target's step from the runner. A pass of the drafter may have fewer rows, and
    the kernels would write beyond its output. Drafts of a request with a LoRA lose only its change of the embeddings.
    vLLM's cache of compiled code must distinguish such a drafter from one of an engine without the adapter.
    """
    inner = getattr(drafter.model, "model", None)
    plain = getattr(getattr(inner, "embed_tokens", None), "base_layer", None)
    if inner is not None and plain is not None:
        inner.embed_tokens = plain
        config = getattr(inner, "vllm_config", None)  # the key of the drafter's compiled code
        if config is not None and isinstance(config.additional_config, dict):
            config.additional_config = {**config.additional_config, "specpilot_embeddings": "plain"}

"""Counts the draft tokens of each request that a step verified, if vLLM's adaptive verification may cut drafts short.

The scheduler schedules K draft tokens of a request. Adaptive verification (model runner V2) verifies a prefix of them,
chosen on the accelerator by the estimated acceptance of each token, and vLLM does not report its length. If such a
draft were counted as K tokens, a draft with 2 verified and accepted tokens would count as a rejection at position 3.

A request's verified draft tokens are those that the runner's sampler accepted or rejected. The number of rejected ones
is copied to the host with the sampled tokens; the sum of both becomes an attribute of vLLM's `ModelRunnerOutput`.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

ATTRIBUTE = "specpilot_verified"
_REJECTED = "_specpilot_rejected"


def of_output(output: Any) -> Mapping[str, int] | None:
    """Return the number of verified draft tokens of each request; `None`: all that were scheduled."""
    verified: Mapping[str, int] | None = getattr(output, ATTRIBUTE, None)
    return verified


def report(outputs: Any, is_adaptive: Callable[[], bool], copied: Callable[[Any, Any, Any], Any]) -> None:
    """Add the verified draft tokens of a step to outputs of this class, vLLM's `AsyncOutput` or a similar one.

    `is_adaptive()` returns whether this process's engine verifies adaptively. `copied(tensor, main_stream,
    copy_stream)` begins the copy of a tensor to the host, before vLLM's own copies on the same stream.
    """
    init, get_output = outputs.__init__, outputs.get_output
    names = [*signature(init).parameters][1:]

    @wraps(init)
    def init_with_rejected(self: Any, *args: Any, **kwargs: Any) -> None:
        rejected = None
        if is_adaptive():
            arguments = dict(zip(names, args, strict=False)) | kwargs
            rejected = copied(
                arguments["sampler_output"].num_rejected, arguments["main_stream"], arguments["copy_stream"]
            )
        setattr(self, _REJECTED, rejected)
        init(self, *args, **kwargs)

    @wraps(get_output)
    def get_output_with_verified(self: Any) -> Any:
        output, rejected = get_output(self), getattr(self, _REJECTED)
        if rejected is not None:
            tokens = output.sampled_token_ids
            verified = {
                request: max(0, len(sampled) - 1 + int(count))
                for request, sampled, count in zip(output.req_ids, tokens, rejected, strict=False)
            }
            setattr(output, ATTRIBUTE, verified)
        return output

    outputs.__init__ = init_with_rejected
    outputs.get_output = get_output_with_verified

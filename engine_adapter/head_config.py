"""A draft head's method and K, from its own `config.json`. Pure.

A head in the format of the `speculators` package names its method (`speculators_model_type`) and its K. A P-EAGLE
head in vLLM's own format has the mask token that parallel drafting needs (`ptd_token_id`, or `pard_token`); an EAGLE-3
head has none.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from specpilot.engine_adapter.errors import InvalidSettingsError

_PARALLEL = {"eagle3": False, "peagle": True}
"""The kinds of `speculators` heads that the adapter steers, and whether they draft in parallel."""

_MASK_TOKENS = ("ptd_token_id", "pard_token", "mask_token_id")


class HeadConfig(NamedTuple):
    """Whether a head drafts in parallel, and how many tokens it proposes; `None`: not stated."""

    is_parallel: bool
    k: int | None


def read(config: Mapping[str, Any], name: str) -> HeadConfig:
    """Return method and K of the head `name`; raises `InvalidSettingsError` for an unknown kind."""
    kind = config.get("speculators_model_type")
    if kind is None:
        return HeadConfig(any(config.get(token) is not None for token in _MASK_TOKENS), None)
    if kind not in _PARALLEL:
        raise InvalidSettingsError(
            [f"--drafter: {name} is a {kind!r} head; the adapter steers {' and '.join(_PARALLEL)} heads"]
        )
    try:
        k = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        k = None
    return HeadConfig(_PARALLEL[kind], k if isinstance(k, int) and k > 0 else None)

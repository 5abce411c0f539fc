"""A draft head's method and K, from its own `config.json`. Pure.

A head in the format of the `speculators` package names its method (`speculators_model_type`) and its K. A P-EAGLE
head in vLLM's own format has the mask token that parallel drafting needs (`ptd_token_id`, or `pard_token`); an EAGLE-3
head has none; a DFlash head has a `dflash_config`, and drafts at most a token less than its `block_size`; a DSpark head
has a class of this name, and drafts `block_size` tokens, or one less if it does not `sample_from_anchor`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from specpilot.engine_adapter.errors import InvalidSettingsError

_EAGLE3, _DFLASH, _DSPARK = "eagle3", "dflash", "dspark"
_METHODS = {
    "eagle3": (_EAGLE3, False),
    "peagle": (_EAGLE3, True),
    "dflash": (_DFLASH, False),
    "dspark": (_DSPARK, False),
}
"""The kinds of `speculators` heads that are steered: vLLM's method, and whether `parallel_drafting` is set."""

MTP, MTP_K_MAX = "mtp", 3
"""The name of a model's own MTP head as drafter, and its K_max if nothing states one."""
DEFAULT_K_MAX = 7
"""K_max of other heads, if neither a flag nor the head states one."""

_MASK_TOKENS = ("ptd_token_id", "pard_token", "mask_token_id")


class HeadConfig(NamedTuple):
    """Whether `parallel_drafting` is set for a head, how many tokens it proposes, and vLLM's method.

    `k` is `None` where it is not stated.
    """

    is_parallel: bool
    k: int | None
    method: str = _EAGLE3


def by_name(name: str) -> HeadConfig:
    """Return method and K of a head that is no folder here: P-EAGLE unless its name says DFlash or DSpark."""
    method = next((method for method in (_DFLASH, _DSPARK) if method in name.lower()), _EAGLE3)
    return HeadConfig(method == _EAGLE3, None, method)


def read(config: Mapping[str, Any], name: str) -> HeadConfig:
    """Return method and K of the head `name`; raises `InvalidSettingsError` for an unknown kind."""
    kind = config.get("speculators_model_type")
    block = config.get("block_size")
    if kind is None and "dflash_config" in config:
        return HeadConfig(False, block - 1 if isinstance(block, int) and block > 1 else None, _DFLASH)
    if kind is None and any("DSpark" in item for item in config.get("architectures") or ()):
        block = block - 1 if isinstance(block, int) and not config.get("sample_from_anchor", True) else block
        return HeadConfig(False, block if isinstance(block, int) and block > 0 else None, _DSPARK)
    if kind is None:
        return HeadConfig(any(config.get(token) is not None for token in _MASK_TOKENS), None)
    if kind not in _METHODS:
        raise InvalidSettingsError(
            [f"--drafter: {name} is a {kind!r} head; the adapter steers {', '.join(_METHODS)} heads"]
        )
    try:
        k = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    except (KeyError, IndexError, TypeError):
        k = None
    method, is_parallel = _METHODS[kind]
    return HeadConfig(is_parallel, k if isinstance(k, int) and k > 0 else None, method)


def speculative_config(drafter: str, head: HeadConfig | None, k_max: int | None) -> dict[str, object]:
    """Return vLLM's JSON for a drafter: `mtp`, or a head, whose configuration is `head` where it is at hand."""
    if drafter == MTP:
        return {"method": MTP, "num_speculative_tokens": MTP_K_MAX if k_max is None else k_max}
    head = head or by_name(drafter)
    k_max = k_max if k_max is not None else head.k or DEFAULT_K_MAX
    config: dict[str, object] = {"method": head.method, "model": drafter, "num_speculative_tokens": k_max}
    return config | ({"parallel_drafting": True} if head.is_parallel else {})

"""Why vLLM itself would not start, or not serve, with a draft head: from both models' `config.json`. Pure."""

from specpilot.engine_adapter.vllm import model_facts
from specpilot.engine_adapter.vllm.model_facts import Config

_EAGLE = ("eagle", "eagle3")
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Fields of a head's configuration in which vLLM finds the mask token (`_init_parallel_drafting_params`)."""
_EAGLE_OF_MTP = {"eagle": ("deepseek_mtp",), "eagle3": ()}
"""Kinds of models that are MTP heads by themselves, of which vLLM makes EAGLE heads too (its registry of models)."""


def of_head(method: str, head: Config, target: Config, *, is_parallel: bool) -> list[str]:
    """Return the faults of a head of `method`; none of methods that have no head of this kind."""
    faults = []
    if is_parallel and method in (*_EAGLE, "draft_model") and all(head.get(name) is None for name in _MASKS):
        faults.append(
            "vLLM drafts in parallel with a head whose config.json names a mask token (ptd_token_id or pard_token), "
            "and this one names none: remove parallel_drafting from --speculative-config, or name a P-EAGLE head"
        )
    if method not in _EAGLE:
        return faults
    mtp = model_facts.mtp_head(head)
    if mtp is not None and mtp.kind not in _EAGLE_OF_MTP[method]:
        faults.append(
            f"vLLM takes this head ({model_facts.architecture(head)}) for an MTP head, not for one of method "
            f'{method!r}: set "method": "mtp" in --speculative-config, or name an EAGLE head'
        )
    text, width = model_facts.text_of(head), model_facts.text_of(target).get("hidden_size")
    reads = text.get("target_hidden_size") or text.get("hidden_size")
    if mtp is None and width is not None and reads is not None and width != reads:
        faults.append(
            f"the head reads hidden states of {reads} numbers, and the target's have {width}: name a head of this "
            "target"
        )
    return faults

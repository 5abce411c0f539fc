"""Published pairs of target and draft head for `specpilot engine --preset NAME`. Pure.

The facts come from the heads' cards and from public recipes (see `docs/reference/presets.md`). None of the large pairs
has been run with the adapter. `None` means unknown: a preset without a published K needs `--k-max`, a preset without a
published head needs `--drafter`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.head_config import HeadConfig

P_EAGLE = "P-EAGLE"
EAGLE_3 = "EAGLE-3"
FLAG = "--preset"
_GRAPH_SIZES = ("--max-cudagraph-capture-size", "--cudagraph-capture-sizes")
"""vLLM's flags for the sizes of CUDA graphs; an operator's own flag replaces those of a preset."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One pair. `k_trained`: the depth of the head's training. `k`: the K that its authors serve. `flags` go to vLLM.

    `limits`: known conditions in which it brings no gain, or was not tried.
    """

    name: str
    target: str
    head: str | None
    method: str
    k: int | None = None
    k_trained: int | None = None
    flags: tuple[str, ...] = ()
    limits: str = ""


_CAPTURE = (_GRAPH_SIZES[0], "4096")
"""K_max + 1 tokens for each running request need graphs of this size. The card of GPT-OSS-20B-P-EAGLE sets it; the
other P-EAGLE heads of the family get the same."""

_LONG = "made for prompts above 10,000 tokens"
_MULTIMODAL = "multimodal target: not run with the adapter"
_MLA = (
    "MLA: scheduled synchronously, unless vLLM takes the attention backend FLASH_ATTN_MLA or FLASHINFER_MLA; the head "
    "runs in every step, so K = 0 saves less than with other heads; not run with the adapter"
)
"""The result of the adapter's own rules (`vllm.compat`) for a target and a head with MLA."""

PRESETS: tuple[Preset, ...] = (
    Preset(
        "gpt-oss-20b-p-eagle", "openai/gpt-oss-20b", "amazon/GPT-OSS-20B-P-EAGLE", P_EAGLE, 7, 10, _CAPTURE,
        "the card's quick start serves 5",
    ),
    Preset(
        "gpt-oss-20b-p-eagle-long", "openai/gpt-oss-20b", "amazon/gpt-oss-20b-p-eagle-long-context", P_EAGLE, None, 10,
        _CAPTURE, _LONG,
    ),
    Preset(
        "gpt-oss-120b-p-eagle", "openai/gpt-oss-120b", "amazon/gpt-oss-120b-p-eagle", P_EAGLE, 7, None, _CAPTURE,
        "the best K was 7 for one request and 3 for eight",
    ),
    Preset(
        "gpt-oss-120b-p-eagle-long", "openai/gpt-oss-120b", "amazon/gpt-oss-120b-p-eagle-long-context", P_EAGLE, 5, 8,
        _CAPTURE, _LONG,
    ),
    Preset(
        "qwen3-coder-30b-p-eagle", "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "amazon/Qwen3-Coder-30B-A3B-Instruct-P-EAGLE", P_EAGLE, 10,
        limits="acceptance length falls from 5.30 to 1.20 at 100,000 tokens of context",
    ),
    Preset("qwen3-8b-p-eagle", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.peagle", P_EAGLE, 7),
    Preset(
        "gemma-4-31b-p-eagle", "google/gemma-4-31B-it", None, P_EAGLE,
        limits="its P-EAGLE head is offered through SageMaker JumpStart only",
    ),
    Preset("gpt-oss-120b-eagle3", "openai/gpt-oss-120b", "nvidia/gpt-oss-120b-Eagle3-v3", EAGLE_3, 7),
    Preset("gpt-oss-20b-eagle3", "openai/gpt-oss-20b", "RedHatAI/gpt-oss-20b-speculator.eagle3", EAGLE_3, 3),
    Preset(
        "llama-3.1-8b-eagle3", "meta-llama/Llama-3.1-8B-Instruct",
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", EAGLE_3, 3,
    ),
    Preset(
        "llama-3.3-70b-eagle3", "meta-llama/Llama-3.3-70B-Instruct",
        "RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", EAGLE_3, 3,
    ),
    Preset("qwen3-8b-eagle3", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", EAGLE_3, 3),
    Preset("qwen3-14b-eagle3", "Qwen/Qwen3-14B", "RedHatAI/Qwen3-14B-speculator.eagle3", EAGLE_3, 3),
    Preset("qwen3-32b-eagle3", "Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3", EAGLE_3, 3),
    Preset(
        "gemma-4-31b-eagle3", "google/gemma-4-31B-it", "RedHatAI/gemma-4-31B-it-speculator.eagle3", EAGLE_3, 3,
        limits=_MULTIMODAL,
    ),
    Preset(
        "qwen3-vl-235b-eagle3", "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "RedHatAI/Qwen3-VL-235B-A22B-Instruct-speculator.eagle3", EAGLE_3, 4, limits=_MULTIMODAL,
    ),
    Preset(
        "kimi-k2.5-eagle3", "moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3-mla", EAGLE_3, 3,
        limits=_MLA,
    ),
    Preset("minimax-m3-eagle3", "MiniMaxAI/MiniMax-M3", "Inferact/MiniMax-M3-EAGLE3", EAGLE_3, 3),
)  # fmt: skip
"""In the order in which they are listed."""


def preset(name: str) -> Preset:
    """Return the preset `name`; raises `InvalidSettingsError` with the nearest names."""
    for item in PRESETS:
        if item.name == name:
            return item
    close = get_close_matches(name, [item.name for item in PRESETS], n=3)
    remedy = f"did you mean {' or '.join(close)}?" if close else "`specpilot presets` lists them"
    raise InvalidSettingsError([f"{FLAG}: there is no preset {name!r}; {remedy}"])


def drafter_of(
    item: Preset, drafter: str | None, head: HeadConfig | None, k_max: int | None
) -> tuple[str, HeadConfig, int]:
    """Return the head that an engine of a preset takes, its method, and K_max.

    What the user names wins: the `drafter`, with its own configuration `head` where it is at hand, and `k_max`. Raises
    `InvalidSettingsError` for a preset that needs a missing flag.
    """
    name = drafter or item.head
    known_k = head.k if head is not None else None
    k = k_max if k_max is not None else known_k or item.k
    faults = []
    if name is None:
        faults.append(f"{FLAG}: {item.name} has no published head ({item.limits}): name one with --drafter")
    if k is None:
        trained = f" (it was trained for {item.k_trained})" if item.k_trained else ""
        faults.append(f"{FLAG}: no K is published for {item.name}{trained}: give --k-max")
    elif item.k_trained is not None and drafter is None and k > item.k_trained:
        faults.append(f"--k-max: is {k}; the head of {item.name} was trained for {item.k_trained}")
    if faults or name is None or k is None:
        raise InvalidSettingsError(faults)
    return name, head or HeadConfig(item.method == P_EAGLE, None), k


def flags_of(item: Preset, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the preset's flags for vLLM beside the user's `flags`, whose sizes of CUDA graphs replace its own."""
    names = {word.partition("=")[0].replace("_", "-") for word in flags}
    return item.flags if names.isdisjoint(_GRAPH_SIZES) else ()

"""vLLM's counters of speculation, parsed from an engine's `/metrics`. Pure.

Clients measure acceptance by them (`vllm bench serve`, AIPerf), so the gateway serves their sums under the same names
and labels. A series is stored under `key_of` its name, position and model. Series that differ only in another label
(`engine`: the rank within one engine) are added.
"""

import re
from dataclasses import dataclass
from math import isfinite
from typing import Final

SERIES_MAX: Final = 1024
"""Series read from one engine: some hundred positions of several models. Further ones are left out."""


PREFIX = "vllm:spec_decode_"
HELP = {
    "num_drafts": "Drafts verified, summed over the engines.",
    "num_draft_tokens": "Draft tokens verified, summed over the engines.",
    "num_accepted_tokens": "Draft tokens accepted, summed over the engines.",
    "num_accepted_tokens_per_pos": "Draft tokens accepted at a position, from 0, summed over the engines.",
}
"""The counters that are read, without `_total`, and their meaning."""

PER_POSITION = "num_accepted_tokens_per_pos"

Counts = dict[str, float]
"""The value of each series, by `key_of`."""

_NAMES = "|".join(HELP).encode()
_SERIES = re.compile(rb"^%s(%s)_total\{([^\n]*)\} +([^ \n]+)" % (PREFIX.encode(), _NAMES), re.MULTILINE)
_LABEL = re.compile(rb'([A-Za-z_]\w*)="((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(.)")
_POSITION = re.compile(r"\d{1,4}")


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of the engine at `url`, requested at `began_at` and answered at `ended_at` (monotonic seconds)."""

    url: str
    began_at: float
    ended_at: float
    counts: Counts


def key_of(name: str, position: str, model: str) -> str:
    """Return the key of a series; `position` is empty for counters without one."""
    return f"{name}|{position}|{model}"


def parts_of(key: str) -> tuple[str, str, str]:
    """Return name, position and model of a series."""
    name, position, model = key.split("|", 2)
    return name, position, model


def parse(text: bytes) -> Counts:
    """Return the counters in the exposition `text`. Series without a model, and malformed ones, are left out."""
    counts: Counts = {}
    for name, labels, value in _SERIES.findall(text):
        named = {label.decode(): _plain(quoted) for label, quoted in _LABEL.findall(labels)}
        model, position = named.get("model_name"), named.get("position", "")
        is_placed = bool(_POSITION.fullmatch(position)) if name.decode() == PER_POSITION else not position
        try:
            count = float(value)
        except ValueError:
            continue
        if model is None or not is_placed or not isfinite(count) or count < 0:
            continue
        key = key_of(name.decode(), position, model)
        if key in counts or len(counts) < SERIES_MAX:
            counts[key] = counts.get(key, 0.0) + count
    return counts


def _plain(value: bytes) -> str:
    return _ESCAPE.sub(lambda escape: b"\n" if escape[1] == b"n" else escape[1], value).decode(errors="replace")

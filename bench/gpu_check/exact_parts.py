"""The parts that need no idle machine: replies equal to those without speculation, catching up, waits.

Replies are compared in float32 and with Triton attention. With `VLLM_BATCH_INVARIANT=1`, where vLLM supports it, sums
do not depend on the batch, and every reply must be the same. Otherwise a reply may differ from a token on whose rival
is nearly as likely: see `logit_gap`.
"""

from collections.abc import Mapping
from typing import Any

from specpilot.bench.gpu_check.check import (
    MEASURED,
    NO_CUDA,
    NO_ENGINE,
    SKIPPED,
    Check,
    Line,
    Outcome,
    Part,
    PartError,
    judged,
)
from specpilot.bench.gpu_check.logit_gap import BOUNDS, partings
from specpilot.bench.gpu_check.parts import options_of, steered

REFERENCE = "replies without speculation"
AUTO, ON, OFF = "auto", "on", "off"
"""Whether replies are compared under `VLLM_BATCH_INVARIANT=1`: if it runs, always, or never."""
LEAST_ACCEPTED = 0.9
"""Least acceptance after a period of K = 0 over that without one: some thousand drafts vary by a few percent."""

_NEEDS_S = 120.0
"""Least remaining seconds for such a part to begin: five of them side by side took 90 to 145 s (one H200)."""
_INVARIANT = {"VLLM_BATCH_INVARIANT": "1"}
_BOUND = BOUNDS["float32"]


def parts() -> list[Part]:
    """Return the parts, the most informative first."""
    return [
        Part(REFERENCE, 300, reference, _NEEDS_S),
        Part("replies, asynchronous", 420, lambda check: exact(check, is_async=True), _NEEDS_S),
        Part("replies, synchronous", 420, lambda check: exact(check, is_async=False), _NEEDS_S),
        Part("catching up, with graphs", 300, lambda check: catching_up(check, has_graphs=True), _NEEDS_S),
        Part("catching up, without graphs", 300, lambda check: catching_up(check, has_graphs=False), _NEEDS_S),
        Part("waits", 300, waits, _NEEDS_S),
    ]


def reference(check: Check) -> Outcome:
    """Generate the replies of an engine without speculation, with the likeliest tokens beside each token."""
    if not check.has_engine:
        return [Line(REFERENCE, SKIPPED, NO_ENGINE)], {}
    why = "not asked for" if check.batch_invariant == OFF else None if check.has_cuda else NO_CUDA
    replies: dict[str, Any] | None = None
    if why is None:
        try:
            replies = _replies(check, options_of(check, **_exact(check)), "without speculation", is_invariant=True)
        except PartError as error:
            if check.batch_invariant == ON or error.is_cut:
                raise
            why = str(error)
    if replies is None:
        replies = _replies(check, options_of(check, **_exact(check)), "without speculation", is_invariant=False)
    how = "batch-invariant" if why is None else f"not batch-invariant: {why}"
    text = f"{len(replies['ids']['plain'])} replies, {how}"
    return [Line(REFERENCE, MEASURED, text)], replies | {"is_invariant": why is None}


def exact(check: Check, *, is_async: bool) -> Outcome:
    """Compare the replies at each K with those without speculation."""
    how = "asynchronous" if is_async else "synchronous"
    name = f"replies as without speculation, {how}"
    if is_async and not check.has_cuda:
        return [Line(name, SKIPPED, f"{NO_CUDA}: vLLM schedules speculation synchronously on a CPU")], {}
    known = check.data(REFERENCE)
    if "ids" not in known:
        return [Line(name, SKIPPED, "there are no replies without speculation to compare with")], {}
    is_invariant = known["is_invariant"]
    options = steered(check, is_async=is_async, **_exact(check))
    try:
        replies = _replies(check, options, how, is_invariant=is_invariant)
    except PartError as error:
        if not is_invariant or check.batch_invariant == ON or error.is_cut:
            raise
        is_invariant = False  # the head may not support it, although the target alone does
        known = _replies(check, options_of(check, **_exact(check)), f"without speculation, {how}", is_invariant=False)
        replies = _replies(check, options, how, is_invariant=False)
    plain, likeliest = known["ids"]["plain"], known["likeliest"]
    lines, places = [], {}
    for k, ids in replies["ids"].items():
        apart = partings(ids, plain, likeliest)
        label = "K changing at random" if k == "changing" else f"K = {k}"
        text = f"{len(apart)} of {len(plain)} differ"
        if apart and not is_invariant:
            text += f"; gap where they part, {_BOUND} allowed: " + ", ".join(str(item) for item in apart[:4])
        is_right = not apart if is_invariant else all(item.is_rounding(_BOUND) for item in apart)
        lines.append(judged(f"{name}, {label}", text, is_right=is_right))
        places[k] = [[item.reply, item.place, item.gap] for item in apart]
    return lines, {"start_s": replies["start_s"], "partings": places, "bound": None if is_invariant else _BOUND}


def _exact(check: Check) -> dict[str, Any]:
    return {"dtype": "float32"} | ({"attention_backend": "TRITON_ATTN"} if check.has_cuda else {"enforce_eager": True})


def _replies(check: Check, options: Mapping[str, Any], how: str, *, is_invariant: bool) -> dict[str, Any]:
    texts = check.texts(check.by_device(check.replies, 48, 6))
    tokens = check.by_device(check.tokens, 96, 24)
    log = f"replies {how}" + (", batch-invariant" if is_invariant else "")
    variables = _INVARIANT if is_invariant else {}
    return check.engine("replies", options, log, variables, texts=texts, tokens=tokens, ks=list(check.ks))


def catching_up(check: Check, *, has_graphs: bool) -> Outcome:
    """Measure acceptance after a period of K = 0."""
    name = f"acceptance after a spell of K = 0, {'with' if has_graphs else 'without'} graphs"
    if not check.has_engine or (has_graphs and not check.has_cuda):
        return [Line(name, SKIPPED, NO_CUDA if check.has_engine else NO_ENGINE)], {}
    options = steered(check, is_async=check.has_cuda, **_exact(check) | {"enforce_eager": not has_graphs})
    texts, tokens = check.texts(check.by_device(check.replies, 32, 6)), check.by_device(check.tokens, 128, 48)
    counts = check.engine("caught up", options, name, texts=texts, tokens=tokens)
    rates = {
        way: counts[way]["accepted"] / max(1, counts[way]["verified"])
        for way in ("never off", "caught up", "not caught up")
    }
    ratio = rates["caught up"] / max(1e-9, rates["never off"])
    text = ", ".join(f"{way} {rate:.3f}" for way, rate in rates.items()) + f"; ratio {ratio:.3f}"
    pairs = list(zip(counts["caught up"]["ids"], counts["never off"]["ids"], strict=True))
    apart = sum(reply != other for reply, other in pairs)
    return [
        judged(name, text, is_right=ratio >= LEAST_ACCEPTED),
        Line(f"{name}: text", MEASURED, f"{apart} of {len(pairs)} replies differ from those without such a spell"),
    ], {way: {item: counts[way][item] for item in ("verified", "accepted")} for way in rates}


def waits(check: Check) -> Outcome:
    """Count synchronisations and compilations after warm-up."""
    names = ("the adapter waits for the device in no step", "nothing is compiled after warm-up")
    if not check.has_cuda or not check.has_engine:
        return [Line(name, SKIPPED, NO_ENGINE if check.has_cuda else NO_CUDA) for name in names], {}
    options = steered(check, is_async=True, jit_monitor_mode="warn")
    texts, tokens = check.texts(check.by_device(check.replies, 48, 6)), check.by_device(check.tokens, 96, 24)
    counts = check.engine("waits", options, "waits", texts=texts, tokens=tokens, ks=list(check.ks))
    others = sum(counts["waits"].values()) - sum(counts["own"].values())
    first = f"{counts['steps']} steps: {sum(counts['own'].values())} of the adapter's, {others} of vLLM's own"
    second = f"{len(counts['compilations'])} messages" + "".join(f"; {text}" for text in counts["compilations"][:2])
    return [
        judged(names[0], first, is_right=not counts["own"]),
        judged(names[1], second, is_right=not counts["compilations"]),
    ], counts

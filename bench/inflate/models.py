"""The tensors of a large target and of its draft heads: their names, shapes, and makers."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from specpilot.bench.inflate.layout import Layout, LayoutError
from specpilot.bench.inflate.matrices import Matrices
from specpilot.bench.inflate.number_format import INT64, Array

_TABLES = {"d2t", "t2d"}
"""A head's tables between its vocabulary and the target's: the first is computed here, vLLM ignores the second."""


class Tensor(NamedTuple):
    """A tensor to be written: `code` is its number format in the file, `make` returns it."""

    name: str
    code: str
    shape: tuple[int, ...]
    make: Callable[[], Array]


def target_tensors(matrices: Matrices, layers: int, vocabulary: int) -> list[Tensor]:
    """Return the tensors of a target with `layers` layers."""
    at, code = matrices.layout, matrices.numbers.code
    shape, embedding = (vocabulary, at.hidden), "model.embed_tokens.weight"
    logits = "lm_head.weight" if "lm_head.weight" in matrices.small else embedding
    tensors = [
        Tensor(embedding, code, shape, lambda: matrices.embedding(embedding, vocabulary)),
        Tensor("lm_head.weight", code, shape, lambda: matrices.logits(logits, vocabulary)),
        Tensor("model.norm.weight", code, (at.hidden,), lambda: matrices.norm("model.norm.weight", is_last=True)),
        *_layers(matrices, "model.layers.", layers, first_blocks=1),
    ]
    _check_names(matrices, tensors, {"lm_head.weight"} if logits == embedding else set())
    return tensors


def head_tensors(
    matrices: Matrices, target: Layout, layers: int, vocabulary: int, draft_vocabulary: int
) -> list[Tensor]:
    """Return the tensors of an EAGLE-3 or P-EAGLE head for a large target, laid out as `target`."""
    at, code, small = matrices.layout, matrices.numbers.code, matrices.small
    if "fc.weight" not in small:
        raise LayoutError("it has no tensor fc.weight, so it is no EAGLE-3 or P-EAGLE head")
    states = small["fc.weight"].shape[1] // target.small_hidden * target.hidden
    tensors = [
        Tensor(
            "lm_head.weight",
            code,
            (draft_vocabulary, at.hidden),
            lambda: matrices.logits("lm_head.weight", draft_vocabulary),
        ),
        Tensor("fc.weight", code, (at.hidden, states), lambda: matrices.fusion("fc.weight", target)),
        Tensor("norm.weight", code, (at.hidden,), lambda: matrices.norm("norm.weight", is_last=True)),
        *_layers(matrices, "layers.", layers, first_blocks=2),
    ]
    if "embed_tokens.weight" in small:
        shape = (vocabulary, at.hidden)
        embedding = Tensor(
            "embed_tokens.weight", code, shape, lambda: matrices.embedding("embed_tokens.weight", vocabulary)
        )
        tensors.insert(0, embedding)
    if "mask_hidden" in small:
        tensors.append(Tensor("mask_hidden", code, (1, 1, states), lambda: matrices.mask_state("mask_hidden", target)))
    if draft_vocabulary != vocabulary:
        rows = len(small["lm_head.weight"])
        tensors.append(
            Tensor("d2t", INT64, (draft_vocabulary,), lambda: matrices.draft_tokens("d2t", rows, draft_vocabulary))
        )
    _check_names(matrices, tensors, _TABLES)
    return tensors


def _check_names(matrices: Matrices, tensors: list[Tensor], optional: set[str]) -> None:
    """Raise `LayoutError` if the small model has tensors that would be lost, or lacks some that are read."""
    lost = {*matrices.small} - {item.name for item in tensors} - _TABLES
    lacking = {item.name for item in tensors if _is_known(matrices.layout, item.name)} - {*matrices.small} - optional
    if lost or lacking:
        difference = f"has {', '.join(sorted(lost))}" if lost else f"lacks {', '.join(sorted(lacking))}"
        raise LayoutError(f"it is no Llama, or no EAGLE-3 or P-EAGLE head of one: it {difference}")


def _is_known(layout: Layout, name: str) -> bool:
    """Return whether the small model has this tensor; its layers are fewer than the large one's."""
    _, is_layer, rest = name.rpartition("layers.")
    return not is_layer or int(rest.split(".")[0]) < layout.small_layers


def _layers(matrices: Matrices, prefix: str, count: int, first_blocks: int) -> list[Tensor]:
    """Return the tensors of all layers: the small model's, then layers without an effect.

    The tensors of the latter are made once and written for each such layer.
    """
    known = matrices.layout.small_layers
    if count < known:
        raise LayoutError(f"{count} layers are fewer than the small model's {known}")
    tensors = []
    for number in range(known):
        layer_prefix = f"{prefix}{number}."
        tensors += _layer(matrices, layer_prefix, is_known=True, blocks=first_blocks if number == 0 else 1)
    shared = [(item, cache(item.make)) for item in _layer(matrices, "", is_known=False, blocks=1)]
    for number in range(known, count):
        tensors += [
            Tensor(f"{prefix}{number}.{item.name}", item.code, item.shape, make) for item, make in shared
        ]  # fmt: skip
    return tensors


def _layer(matrices: Matrices, prefix: str, *, is_known: bool, blocks: int) -> list[Tensor]:
    """Return the tensors of a layer that reads `blocks` streams: a head's first one reads two."""
    at, code = matrices.layout, matrices.numbers.code
    wide = blocks * at.hidden
    made: dict[str, tuple[tuple[int, ...], Callable[[str | None, str], Array]]] = {
        "input_layernorm": ((at.hidden,), lambda name, _: matrices.norm(name)),
        "post_attention_layernorm": ((at.hidden,), lambda name, _: matrices.norm(name)),
        "self_attn.q_proj": (
            (at.queries.height, wide),
            lambda name, key: matrices.reader(name, key, at.queries, blocks, at.query_scale),
        ),
        "self_attn.k_proj": ((at.keys.height, wide), lambda name, key: matrices.reader(name, key, at.keys, blocks)),
        "self_attn.v_proj": ((at.keys.height, wide), lambda name, key: matrices.reader(name, key, at.keys, blocks)),
        "self_attn.o_proj": ((at.hidden, at.queries.height), lambda name, key: matrices.writer(name, key, at.queries)),
        "mlp.gate_proj": ((at.inner, at.hidden), lambda name, key: matrices.reader(name, key, at.units)),
        "mlp.up_proj": ((at.inner, at.hidden), lambda name, key: matrices.reader(name, key, at.units)),
        "mlp.down_proj": ((at.hidden, at.inner), lambda name, key: matrices.writer(name, key, at.units)),
    }
    if blocks > 1:
        made["hidden_norm"] = ((at.hidden,), lambda name, _: matrices.norm(name))

    def tensor(name: str) -> Tensor:
        shape, make = made[name]
        full = f"{prefix}{name}.weight"
        return Tensor(full, code, shape, lambda: make(full if is_known else None, full))

    return [tensor(name) for name in made]

"""An inflated pair computes the same as the demo pair, by the demo pair's reference code; its files and errors."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from deploy.demo_model.heads import Elements, load_head
from deploy.demo_model.llama import Llama, Shape
from specpilot.bench.inflate import command, files, shapes
from specpilot.bench.inflate.layout import Layout
from specpilot.bench.inflate.number_format import NumberFormat
from specpilot.demo_model import DEMO_MODEL

WIDER_HEADS = shapes.Shape(2048, 7, 8, 4, 1024, 2304, head_dim=128)
TEXT = "def area(width, height):\n    return width * height\n\nWhat does the function return for a width of 3?"
AUX = (2, 4, 6)


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of inflated pairs, by shape and number format."""
    shapes.SHAPES["wider heads"] = WIDER_HEADS
    found = {}
    try:
        for shape, dtype in (("tiny", "float32"), ("wider heads", "bfloat16")):
            found[shape] = tmp_path_factory.mktemp("pair")
            flags = ["--eagle3", str(DEMO_MODEL / "eagle3"), "--dtype", dtype, "--out", str(found[shape])]
            command.main(["--shape", shape, *flags])
    finally:
        del shapes.SHAPES["wider heads"]
    return found


def tokens() -> torch.Tensor:
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "target" / "tokenizer.json"))
    return torch.tensor([tokenizer.encode(TEXT).ids])


def target(folder: Path) -> Llama:
    config = json.loads((folder / "config.json").read_text())
    model = Llama(Shape(**{name: config[name] for name in asdict(Shape())}))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    return model.float().eval()


@pytest.mark.parametrize("shape", ["tiny", "wider heads"])
@torch.inference_mode()
def test_the_target_says_the_same_and_no_new_token(shape: str, inflated: dict[str, Path]) -> None:
    small, large = target(DEMO_MODEL / "target"), target(inflated[shape] / "target")
    asked = tokens()
    expected, found = small(asked)[0], large(asked)[0]
    known = expected.shape[-1]
    assert found.shape[-1] > known
    assert (found[..., :known] - expected).abs().max() < 1e-3
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    assert found[..., known:].max() < expected.min() - 1000


@pytest.mark.parametrize("head", ["peagle", "eagle3"])
@pytest.mark.parametrize("shape", ["tiny", "wider heads"])
@torch.inference_mode()
def test_a_head_drafts_the_same(shape: str, head: str, inflated: dict[str, Path]) -> None:
    asked = tokens()
    length = asked.shape[1]
    extra = Elements(torch.arange(length - 1, length + 5), torch.arange(1, 7))
    drafted = []
    for folder in (DEMO_MODEL, inflated[shape]):
        _, states = target(folder / "target")(asked, AUX)
        own = load_head(folder / head).float()
        drafted.append(torch.cat([own.lm_head(item) for _, item in own(asked, states, extra, 4)], dim=1))
    expected, found = drafted
    known = expected.shape[-1]
    assert found.shape[-1] > known
    assert (found[..., :known] - expected).abs().max() < 1e-3
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    assert found[..., known:].max() < expected.min() - 1000


@torch.inference_mode()
def test_new_dimensions_carry_numbers_as_large_as_the_streams(inflated: dict[str, Path]) -> None:
    large = target(inflated["tiny"] / "target")
    stream = large.embed_tokens(tokens())
    normed = large.layers[7].input_layernorm(stream)  # a layer that the small model does not have
    new = normed[..., 256:-1].abs()
    assert 0.3 < new.mean() < 30
    assert new.min() > 0.1
    assert normed[..., -1].abs().max() == 0  # the marker


def test_the_configuration_is_the_shapes(inflated: dict[str, Path]) -> None:
    config = json.loads((inflated["tiny"] / "target" / "config.json").read_text())
    shape = shapes.SHAPES["tiny"]
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    assert [config[name] for name in names] == [
        shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.intermediate,
    ]  # fmt: skip
    head = json.loads((inflated["tiny"] / "peagle" / "config.json").read_text())
    assert (head["num_hidden_layers"], head["target_hidden_size"], head["draft_vocab_size"]) == (4, 1024, 4096)
    assert (inflated["tiny"] / "target" / "tokenizer.json").exists()


def test_every_shape_holds_the_demo_pair_exactly() -> None:
    for name in ("target", "peagle", "eagle3"):
        small = json.loads((DEMO_MODEL / name / "config.json").read_text())
        for shape in shapes.SHAPES.values():
            layout = Layout(small, command.enlarged(small, shape, shape.layers, NumberFormat("bfloat16")))
            assert layout.is_exact
            assert 0.5 * small["rms_norm_eps"] / layout.factor < layout.epsilon < small["rms_norm_eps"] / layout.factor


def test_a_shape_whose_norms_must_be_rounded_says_so() -> None:
    small = json.loads((DEMO_MODEL / "target" / "config.json").read_text())
    odd = command.enlarged(small, shapes.Shape(1000, 6, 4, 2, 768, 2048), 6, NumberFormat("float32"))
    assert not Layout(small, odd).is_exact


def test_short_numbers_are_rounded_to_the_nearest() -> None:
    short = NumberFormat("bfloat16")
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, 2.0**-40, 0.0], np.float32)  # two lie halfway
    expected = torch.tensor(values).bfloat16().float().numpy()
    assert np.array_equal(short.load(short.store(values)), expected)


def test_the_same_command_writes_the_same_bytes_in_shards(
    monkeypatch: pytest.MonkeyPatch, inflated: dict[str, Path], tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "SHARD_BYTES", 100 << 20)
    command.main(["--shape", "tiny", "--dtype", "float32", "--out", str(tmp_path)])
    shards = sorted((tmp_path / "target").glob("*.safetensors"))
    assert len(shards) == 3
    index = json.loads((tmp_path / "target" / "model.safetensors.index.json").read_text())
    whole = load_file(inflated["tiny"] / "target" / "model.safetensors")
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    for path in shards:
        for name, value in load_file(path).items():
            assert index["weight_map"][name] == path.name
            assert torch.equal(value, whole[name])


def test_a_head_with_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    command.main(["--shape", "tiny", "--draft-vocabulary", "3000", "--out", str(tmp_path)])
    weights = load_file(tmp_path / "peagle" / "model.safetensors")
    assert weights["lm_head.weight"].shape == (3000, 1024)
    numbers = torch.arange(3000) + weights["d2t"]
    assert torch.equal(numbers[:2048], torch.arange(2048))
    assert len(numbers.unique()) == 3000


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_what_cannot_be_done_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = str(tmp_path / "pair")
    assert "--shape: '9b' is none of tiny, 1b" in refused(capsys, "--shape", "9b", "--out", out)
    assert "--target: no model in" in refused(capsys, "--target", str(tmp_path), "--out", out)
    itself = refused(capsys, "--shape", "tiny", "--out", str(DEMO_MODEL))
    assert "is the small model itself; name another folder" in itself
    few = refused(capsys, "--shape", "tiny", "--draft-vocabulary", "100", "--out", out)
    assert "--draft-vocabulary: is 100; name 2048 to 4096" in few
    monkeypatch.setitem(shapes.SHAPES, "small", shapes.Shape(256, 6, 4, 2, 768, 2048))
    assert "the shape is too small in hidden size" in refused(capsys, "--shape", "small", "--out", out)
    monkeypatch.setattr(command.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert "GB free, and the pair takes 0." in refused(capsys, "--shape", "tiny", "--out", out)
    assert not (tmp_path / "pair").exists()


def test_a_model_of_another_kind_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text((DEMO_MODEL / "target" / "config.json").read_text())
    weights = load_file(DEMO_MODEL / "target" / "model.safetensors")
    save_file(weights | {"model.layers.0.self_attn.q_norm.weight": torch.ones(64)}, other / "model.safetensors")
    flags = ("--shape", "tiny", "--target", str(other), "--out", str(tmp_path / "pair"))
    assert "it has model.layers.0.self_attn.q_norm.weight" in refused(capsys, *flags)
    del weights["model.norm.weight"]
    save_file(weights, other / "model.safetensors")
    assert "it lacks model.norm.weight" in refused(capsys, *flags)
    (other / "model.safetensors").unlink()
    assert "it lacks " in refused(capsys, *flags)

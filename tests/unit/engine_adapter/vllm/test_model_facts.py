"""What is read from `config.json` agrees with the installed vLLM, and `specpilot check` with the check at start."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import vllm.model_executor.models as vllm_models
from vllm.config import SpeculativeConfig
from vllm.config.model import _get_and_verify_max_len
from vllm.config.speculative import MTPModelTypes
from vllm.engine.arg_utils import EngineArgs
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from specpilot.engine_adapter import check
from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm import compat, config_facts, model_facts, model_lengths, start_notes
from tests.support import demo_experts
from tests.support.published_configs import CONFIGS
from tests.support.stack import DEMO_MODEL

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what vLLM imports

FOLDER = Path(str(vllm_models.__file__)).parent


def classes() -> dict[str, set[str]]:
    """The classes of vLLM's models with the names of their bases."""
    bases: dict[str, set[str]] = {}
    for file in [*FOLDER.glob("*.py"), *(FOLDER.parents[1] / "models").rglob("*.py")]:
        for name, named in re.findall(r"^class (\w+)\(([^)]*)\)", file.read_text(), re.MULTILINE):
            bases.setdefault(name, set()).update(re.findall(r"\w+", named))
    return bases


def generating_models() -> Iterator[tuple[str, str]]:
    """The architectures of vLLM's models that generate text, each with its class."""
    for node in ast.parse((FOLDER / "registry.py").read_text()).body:
        named = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        if {"_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"}.isdisjoint(named):
            continue
        assert isinstance(node, ast.Assign)
        assert isinstance(node.value, ast.Dict)
        for key, place in zip(node.value.keys, node.value.values, strict=True):
            assert key is not None
            yield ast.literal_eval(key), ast.literal_eval(place)[-1]


def test_the_models_with_recurrent_layers_are_those_of_vllm() -> None:
    bases = classes()

    def is_recurrent(name: str) -> bool:
        return name in {"IsHybrid", "HasInnerState"} or any(map(is_recurrent, bases.get(name, set()) - {name}))

    models = dict(generating_models())
    assert {model for model, name in models.items() if is_recurrent(name)} == model_facts.RECURRENT & models.keys()


def test_the_models_with_mla_are_those_of_vllm() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(ModelArchConfigConvertorBase.is_deepseek_mla)))
    listed = [
        {text.value for text in ast.walk(node) if isinstance(text, ast.Constant)}
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple)
    ]
    assert sorted(listed, key=len) == [model_facts._MLA_OF_EAGLE, model_facts._MLA]


KINDS = get_args(MTPModelTypes)
MTP_MODELS = sorted(
    [(name, "") for name, kind in model_facts._MTP_BY_ARCHITECTURE.items() if kind in KINDS]
    + [("", name) for name, kind in model_facts._MTP_BY_TYPE.items() if kind in KINDS]
)


class Theirs(SimpleNamespace):
    """A configuration as vLLM's rules read it."""

    def update(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)

    def get_text_config(self) -> SimpleNamespace:
        return getattr(self, "text_config", self)


@pytest.mark.parametrize(("architecture", "model_type"), MTP_MODELS)
@pytest.mark.parametrize("modules", [1, 3])
def test_the_mtp_head_is_the_one_that_vllm_makes(architecture: str, model_type: str, modules: int) -> None:
    text: dict[str, Any] = {
        "num_nextn_predict_layers": modules,
        "num_mtp_modules": modules,
        "mtp_num_hidden_layers": modules,
        "num_attention_heads": 1,
        "mtp_num_experts": 1,
        "mtp_num_experts_per_tok": 1,
        "hc_count": 1,
        "layer_types": [],
        "model_type": "nemotron_h" if architecture.startswith("NemotronH") else model_type or "some",
    }
    config = text | {"architectures": [architecture or "Some"], "mtp_config": text, "text_config": text}
    made = SpeculativeConfig.hf_config_override(Theirs(**config | {"text_config": Theirs(**text)}))
    found = model_facts.mtp_head(config)
    assert found is not None
    assert (found.kind, found.modules) == (made.model_type, made.num_nextn_predict_layers)
    assert found.tokens == getattr(made, "n_predict", None)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_published_model_has_the_mtp_head_that_vllm_makes(name: str) -> None:
    config = CONFIGS[name]
    if not model_facts.architecture(config) or "model_type" not in config:
        return  # in the format of Mistral, or of `speculators`
    theirs = Theirs(**config)
    if "text_config" in config:
        theirs.text_config = Theirs(**{"num_attention_heads": 1} | config["text_config"])
    found, made = model_facts.mtp_head(config), SpeculativeConfig.hf_config_override(theirs)
    assert (found.kind if found else config["model_type"]) == made.model_type


def test_the_inexact_attention_backends_are_those_of_vllm() -> None:
    inexact, read = set(), set()
    for backend in AttentionBackendEnum:
        try:
            builder = backend.get_class().get_builder_cls()
        except Exception:  # noqa: BLE001 - kernels of another machine: whatever they raise, they are not here
            continue
        read.add(backend.name)
        if not compat._reads_any_lengths(builder):
            inexact.add(backend.name)
    assert {"FLASHMLA", "FLASHMLA_SPARSE", "TRITON_MLA"} <= inexact
    on_cpus = {"CPU_MLA", "AMX_MLA"}  # vLLM schedules synchronously there
    assert inexact - on_cpus == compat._INEXACT_ATTENTION & read


@pytest.mark.parametrize(
    "fields",
    [
        {"max_position_embeddings": 4096},
        {"max_position_embeddings": 4096, "seq_len": 2048},
        {"max_position_embeddings": 8192, "model_max_length": 131072},  # Command R
        {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 8.0}},
        {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "yarn", "factor": 8.0}},
        {
            "model_type": "gemma3_text",
            "max_position_embeddings": 131072,
            "rope_parameters": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
        },  # Phi 4
    ],
)
def test_the_longest_sequence_is_the_one_that_vllm_derives(fields: dict[str, Any]) -> None:
    config = SimpleNamespace(**{"model_type": "some", "rope_parameters": None} | fields)
    derived = ModelArchConfigConvertorBase.derive_max_model_len_and_key(SimpleNamespace(hf_text_config=config))
    arch = SimpleNamespace(derived_max_model_len_and_key=derived)
    longest = model_lengths.length(fields)
    assert longest is not None
    assert model_lengths.usual_length(fields) == _get_and_verify_max_len(config, arch, None, None, False, None)
    assert _get_and_verify_max_len(config, arch, None, longest, False, None) == longest
    with pytest.raises(ValueError, match="greater than the derived max_model_len"):
        _get_and_verify_max_len(config, arch, None, longest + 1, False, None)


EAGLE3 = {"method": "eagle3", "model": str(DEMO_MODEL / "eagle3")}
P_EAGLE = {"method": "eagle3", "model": str(DEMO_MODEL / "peagle"), "parallel_drafting": True}
DFLASH = {"method": "dflash", "model": str(DEMO_MODEL / "dflash")}
CONNECTOR = '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}'


@pytest.mark.parametrize(
    ("target", "speculative", "flags", "verdict"),
    [
        ("target", P_EAGLE, (), check.RUNS),
        ("target", P_EAGLE | {"parallel_drafting": False}, (), check.REFUSED),
        ("target", P_EAGLE, ("--pipeline-parallel-size", "2"), check.REFUSED),
        ("target", EAGLE3, (), check.RUNS),
        ("target", EAGLE3, ("--max-model-len", "512"), check.RUNS),
        ("target", EAGLE3, ("--enable-prompt-embeds",), check.REFUSED),
        ("target", EAGLE3, ("--data-parallel-size", "2"), check.RUNS_WITH_LESS),
        ("target", EAGLE3, ("-dp", "4", "-dpl", "2"), check.REFUSED),
        ("target", EAGLE3, ("-dp", "4", "-dpl", "2", "-dph"), check.RUNS_WITH_LESS),
        ("target", EAGLE3 | {"num_speculative_tokens_per_batch_size": [[1, 8, 1]]}, (), check.REFUSED),
        ("target", EAGLE3 | {"max_model_len": 256}, (), check.RUNS_WITH_LESS),
        ("target", {"model": str(DEMO_MODEL / "eagle3")}, (), check.RUNS),
        ("target", {"method": "ngram"}, (), check.REFUSED),
        ("target", {"method": "draft_model", "model": str(DEMO_MODEL / "target")}, (), check.REFUSED),
        ("target", DFLASH, (), check.RUNS),
        ("target", DFLASH, ("--kv-transfer-config", CONNECTOR), check.RUNS_WITH_LESS),
        ("mtp", {"method": "mtp"}, (), check.RUNS),
        ("mtp", {"method": "mimo_mtp"}, (), check.RUNS),
        ("mtp", {"method": "mtp"}, ("--kv-transfer-config", CONNECTOR), check.RUNS_WITH_LESS),
        ("mtp", {"method": "mtp"}, ("-dp", "4", "--nnodes", "2"), check.REFUSED),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-ep"), check.RUNS_WITH_LESS),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-dpl", "1"), check.REFUSED),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-dpl", "1", "-dpr", "1"), check.RUNS_WITH_LESS),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-dpn", "1"), check.RUNS_WITH_LESS),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-dpe", "-dpn", "1", "-dpl", "1"), check.RUNS_WITH_LESS),
        ("experts", {"method": "mtp"}, ("-dp", "2", "-dpe", "--nnodes", "2"), check.RUNS_WITH_LESS),
    ],
)
def test_the_check_before_a_start_agrees_with_the_check_at_start(
    target: str,
    speculative: dict[str, Any],
    flags: tuple[str, ...],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    model = str(DEMO_MODEL / target) if target != "experts" else str(demo_experts.written(tmp_path))
    words = ["--speculative-config", json.dumps(speculative | {"num_speculative_tokens": 3}), *flags]
    found = check.answer_to(model, words, device="cpu")
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    engine_args = EngineArgs.from_cli_args(parser.parse_args(["--model", model, *words]))
    create = inspect.unwrap(EngineArgs.create_engine_config)  # vLLM's own: other tests load the plugin, which wraps it
    vllm_config = create(engine_args)
    facts = config_facts.of_engine(vllm_config)
    assert found.facts == replace(facts, graph_mode=None)  # vLLM's default, which the check leaves out
    try:
        compat.check_config(vllm_config, is_async_scheduler=False)
        refused = ""
    except UnsupportedEngineError as error:
        refused = str(error)
    assert (found.verdict, "; ".join(found.refused)) == (verdict, refused)
    assert list(found.less) == start_notes.limits_of(facts)

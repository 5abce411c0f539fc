"""vLLM's flags are read as vLLM reads them."""

import argparse
import dataclasses
import json
import re
from typing import Any

import pytest
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ModuleNotFoundError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.vllm import serve_flags, serve_names

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own

BY_JSON = ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 3}))
BY_FIELDS = ("--speculative_config.method", "mtp", "--speculative-config.num_speculative_tokens=3")


@pytest.mark.parametrize(
    "words", [BY_JSON, BY_FIELDS, ("-sc", BY_JSON[1]), (*BY_FIELDS, "-sc", "{}"), (*BY_JSON, *BY_FIELDS)]
)
@pytest.mark.parametrize("beside", [(), ("-tp", "2"), ("--tensor_parallel_size=2",), ("-tp", "1", "-tp", "2")])
def test_a_flag_is_read_as_vllm_reads_it(words: tuple[str, ...], beside: tuple[str, ...]) -> None:
    flags = serve_flags.read([*words, *beside, "--enable-lora"])
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    theirs = parser.parse_args([word.replace("-sc", "--speculative-config") for word in [*words, *beside]])
    assert serve_flags.config(flags, "speculative-config") == theirs.speculative_config
    assert serve_flags.whole(flags, "tensor-parallel-size", 1) == theirs.tensor_parallel_size
    assert flags["enable-lora"] is True


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("--max-model-len", "-1", "--port", "8000"), {"max-model-len": "-1", "port": "8000"}),
        (("--lora-modules", "a=/a", "b=/b", "--x"), {"lora-modules": "b=/b", "x": True}),
        (("--a.b.c", "1", "--a.b.d=x"), {"a": {"b": {"c": 1, "d": "x"}}}),
        (("--a=1.5",), {"a": "1.5"}),
        (
            ("--no-enable-prefix-caching", "--no-async-scheduling"),
            {"enable-prefix-caching": False, "async-scheduling": False},
        ),
        (
            ("--disable-prompt-embeds", "--enable-cascade-attn"),  # vLLM 0.33's
            {"enable-prompt-embeds": False, "disable-cascade-attn": False},
        ),
    ],
)
def test_flags_that_nobody_asks_for_are_read_over(words: tuple[str, ...], flags: dict[str, Any]) -> None:
    assert serve_flags.read(words) == flags


def test_a_name_that_is_cut_short_is_the_flag_that_vllm_takes_it_for() -> None:
    actions = EngineArgs.add_cli_args(FlexibleArgumentParser())._option_string_actions
    theirs = {name.removeprefix("--") for name in actions if name.startswith("--")} | {"config"}
    for name in theirs:
        assert serve_flags._whole_name(name) == name
        for short in (name[:end] for end in range(1, len(name))):
            taken_for = {known for known in theirs if known.startswith(short)}
            assert serve_flags._whole_name(short) in {short, *(taken_for if len(taken_for) == 1 else ())}
    for name in ("pipeline-parallel-size", "speculative-config", "no-async-scheduling", "attention-backend"):
        assert serve_flags._whole_name(name[:-4]) == name


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("32k", 32_000), ("32K", 32_768), ("1.5m", 1_500_000)])
def test_a_number_may_have_a_unit(text: str, number: int) -> None:
    assert serve_flags.whole({"max-model-len": text}, "max-model-len", 1) == number


@pytest.mark.parametrize("text", [True, None, "", "k", "8.5", "many", "1e999k"])
def test_what_is_no_number_is_named(text: object) -> None:
    with pytest.raises(InvalidSettingsError, match=r"max-model-len: is .*whole number"):
        serve_flags.whole({"max-model-len": text}, "max-model-len", 1)


def test_every_flag_of_vllm_is_known_with_the_number_of_its_values() -> None:
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        is_switch = action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)
        takes = (
            serve_names.SWITCHES if is_switch else serve_names.WITH_VALUE if action.nargs is None else serve_names.LISTS
        )
        assert not action.option_strings or {name.lstrip("-") for name in action.option_strings} & takes
        assert serve_flags.unknown(name.lstrip("-").removeprefix("no-") for name in action.option_strings) == []


def test_every_field_and_method_of_vllms_speculative_configuration_is_known() -> None:
    serve_flags.check_fields(field.name for field in dataclasses.fields(SpeculativeConfig))
    methods = {name for name in re.findall(r"'(\w+)'", str(SpeculativeMethod)) if not name.endswith("_mtp")}
    assert {"eagle3", "mtp", "dflash", "draft_model", "ngram_gpu"} < methods
    assert methods <= serve_names.SPECULATIVE_METHODS


@pytest.mark.parametrize(
    "words",
    [
        ("MODEL", "-tp", "2"),
        ("-tp", "2", "MODEL"),
        ("--tensor-parallel-size=2", "MODEL"),
        ("--enable-lora", "MODEL"),
        ("--disable-prompt-embeds", "MODEL"),
        ("--no-async-scheduling", "MODEL", "--lora-modules", "a=/a", "b=/b"),
        ("-sc", "{}", "MODEL"),
        ("-sc.method", "mtp", "MODEL"),
        ("--max-model-len", "-1", "-O3", "MODEL"),
    ],
)
def test_the_model_is_the_word_that_no_flag_takes(words: tuple[str, ...]) -> None:
    rest = [word for word in words if word != "MODEL"]
    assert serve_flags.split_model(words) == ("MODEL", rest)
    assert serve_flags.split_model(rest) == (None, rest)

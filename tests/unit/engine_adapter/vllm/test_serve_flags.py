"""vLLM's flags are read as vLLM reads them."""

import json
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.vllm import serve_flags

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
    ],
)
def test_flags_that_nobody_asks_for_are_read_over(words: tuple[str, ...], flags: dict[str, Any]) -> None:
    assert serve_flags.read(words) == flags


def test_a_name_that_is_cut_short_is_the_flag_that_vllm_takes_it_for() -> None:
    actions = EngineArgs.add_cli_args(FlexibleArgumentParser())._option_string_actions
    theirs = {name.removeprefix("--") for name in actions if name.startswith("--")} | {"config"}
    assert theirs >= serve_flags.NAMES
    for name in theirs:
        assert serve_flags._whole_name(name) == name
    for name in serve_flags.NAMES:
        for short in (name[:end] for end in range(1, len(name))):
            if [known for known in theirs if known.startswith(short)] == [name]:
                assert serve_flags._whole_name(short) == name


@pytest.mark.parametrize(("text", "number"), [("8", 8), ("32k", 32_000), ("32K", 32_768), ("1.5m", 1_500_000)])
def test_a_number_may_have_a_unit(text: str, number: int) -> None:
    assert serve_flags.whole({"max-model-len": text}, "max-model-len", 1) == number


@pytest.mark.parametrize("text", [True, None, "", "k", "8.5", "many", "1e999k"])
def test_what_is_no_number_is_named(text: object) -> None:
    with pytest.raises(InvalidSettingsError, match=r"max-model-len: is .*whole number"):
        serve_flags.whole({"max-model-len": text}, "max-model-len", 1)

"""`specpilot check` as a command: what it reads, how it ends, and what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.engine_adapter import check
from tests.support.refusals import refusal
from tests.support.stack import DEMO_MODEL, ROOT

MTP_1 = {"method": "mtp", "num_speculative_tokens": 1}
DP = ("--data-parallel-size", "8", "--enable-expert-parallel")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("qwen3-8b", "--speculative-config", "{"), "--speculative-config: not JSON"),
        (("qwen3-8b", "--speculative-config", "3"), "--speculative-config: must be a JSON object"),
        (("qwen3-8b", "-sc", '{"method": "ngram", "foo": 1}'), "foo: vLLM has no such field; remove it"),
        (
            ("qwen3-8b", "-sc", '{"method": "ngram", "num-speculative-token": 1}'),
            "did you mean num_speculative_tokens?",
        ),
        (("qwen3-8b", "--speculative-confg", "{}"), "no such flag; did you mean --speculative-config?"),
        (("qwen3-8b", "--devise", "cpu"), "no such flag; did you mean --device?"),
        (("--enable-lora", "-tp", "2"), "MODEL: is missing"),
        (("qwen3-8b", "-sc", '{"model": 3}'), "model is 3; it must be text"),
        (("qwen3-8b", "-sc", '{"method": "eagle3"}'), "model is missing"),
        (("qwen3-8b", "-sc", '{"method": "mpt"}'), "method: mpt: vLLM has no such method; did you mean mtp?"),
        (
            ("qwen3-8b", "--spec-method", "eagle-3"),
            "--spec-method: eagle-3: vLLM has no such method; did you mean eagle3?",
        ),
        (("qwen3-8b", "-sc", '{"method": "p-eagle"}'), '"method": "eagle3" and "parallel_drafting": true'),
        (("qwen3-8b", "--spec-model", "llama-3.1-8b"), "check: --spec-tokens is missing"),
        (("qwen3-8b", "-sc", '{"method": "ngram"}'), "check: --speculative-config: num_speculative_tokens is missing"),
        (("qwen3-8b", "--spec-method", "ngram", "--spec-tokens", "some"), "check: --spec-tokens: is some"),
        (
            ("qwen3-8b", "-sc", '{"method": "ngram", "num_speculative_tokens": "seven"}'),
            "check: --speculative-config: num_speculative_tokens: is seven",
        ),
        (
            ("qwen3-8b", "-sc", '{"method": "ngram", "num_speculative_tokens": 1, "max_model_len": "x"}'),
            "check: --speculative-config: max_model_len: is x",
        ),
        (("qwen3-8b", "--spec-method", "ngram", "--spec-tokens", "-1"), "--spec-tokens is -1; it must be above 0"),
        (
            ("qwen3-8b", "--spec-method", "ngram", "--spec-tokens", "1", "-dp", "x"),
            "check: --data-parallel-size: is x",
        ),
        (("qwen3-8b", "--config", "vllm.yaml"), "give its flags on the command line"),
        (("glm-4.5", "-sc", '{"method": "mtp"}'), "num_speculative_tokens is missing"),
        (("qwen3-8b", "-sc", '{"method": "dflash", "model": "laguna-dflash"}'), "num_speculative_tokens is missing"),
        (("qwen3-8b-peagle", "--spec-tokens", "5"), "--spec-tokens: vLLM takes it from the head"),
        (("qwen3-8b", "--spec-model", "a", "--spec-method", "EAGLE3"), "EAGLE3: vLLM has no such method; did you mean"),
        (("qwen3-8b", "--spec-model", "a", "--spec-method", "eagle4"), "eagle4: vLLM has no such method"),
        (("qwen3-8b", "stray"), "stray: is no flag"),
        (("qwen3-8b", "--vllm", "newest"), "--vllm: is 'newest'"),
        (("./nowhere",), "there is no such folder"),
        (("a/b/c",), "there is no such folder"),
        (("not an id",), "is no folder and no Hugging Face id"),
        (("empty",), "there is no config.json"),
        (("broken",), "cannot be read as JSON"),
        (("listed",), "must be a JSON object"),
        (("nameless", "--spec-method", "mtp", "--spec-tokens", "1"), "neither architectures nor model_type"),
        (("odd", "--spec-method", "mtp", "--spec-tokens", "1"), "compare it with the published one"),
        (("quoted", "--spec-method", "mtp", "--spec-tokens", "1"), "compare it with the published one"),
        (("wrong",), "architectures is no list"),
        (("qwen3-8b", "--spec-method", "mtp", "-sc", '{"method": "mtp"}'), "method: stated by --spec-... too"),
    ],
)
@pytest.mark.usefixtures("models")
def test_input_that_cannot_be_used_ends_with_status_2_and_the_remedy(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    odd = '{"architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": "one"}'
    quoted = '{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_nextn_predict_layers": "1"}'
    texts = {
        "broken": "{",
        "listed": "[]",
        "nameless": "{}",
        "odd": odd,
        "quoted": quoted,
        "wrong": '{"architectures": "Llama"}',
    }
    for name, text in texts.items():
        Path(name).mkdir()
        (Path(name) / "config.json").write_text(text)
    assert words in refusal(capsys, check.main, arguments)


@pytest.mark.usefixtures("models")
def test_the_model_may_stand_after_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    check.main(["--enable-lora", "--speculative-config", json.dumps(MTP_1), "--no-enable-log-requests", "glm-4.5"])
    assert capsys.readouterr().out.startswith("runs: glm-4.5, mtp")


@pytest.mark.usefixtures("models")
def test_the_answer_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    check.main(
        ["glm-4.5", "--speculative-config.method=mtp", "--speculative-config.num_speculative_tokens=1", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["refused"], found["facts"]["head_kind"]) == ("runs", [], "glm4_moe_mtp")
    with pytest.raises(SystemExit) as ended:
        check.main(["glm-4.5", "--spec-method", "mtp", "--spec-tokens", "1", "-pp", "2", "--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "refused"


def test_the_command_loads_neither_vllm_nor_torch() -> None:
    code = "import sys; from specpilot.engine_adapter import check; "
    code += f"check.main([{str(DEMO_MODEL / 'mtp')!r}, '--spec-method', 'mtp', '--spec-tokens', '1']); "
    code += "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("runs: ")
    assert done.stdout.endswith("\n[]\n")

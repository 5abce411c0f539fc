"""The clients that people use, through the gateway, on a real engine: every API of it that they call."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from specpilot.bench.report.process_tree import tree
from tests.support.client_packages import node_folder, python_folder
from tests.support.stack import DEMO_MODEL, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without `vllm`: that wants a distribution of this name, and the one for the CPU has another."""

MESSAGES: Any = [{"role": "user", "content": "Write a function that adds two numbers."}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Iterator[str]:
    """The base URL of the gateway, while K stays."""
    stack.put_policy(mode="off", static_k=3)
    yield stack.gateway
    stack.put_policy(mode="act", static_k=None)


@pytest.fixture
def client(gateway: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def messages(gateway: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=gateway, api_key="none", max_retries=0) as made:
        yield made


def test_messages(messages: Anthropic) -> None:
    said = messages.messages.create(model="demo", messages=MESSAGES, max_tokens=24)
    assert said.content[0].type == "text"
    assert said.content[0].text
    assert 0 < said.usage.output_tokens <= 24
    assert said.stop_reason in ("end_turn", "max_tokens")


def test_tokens_of_messages_are_counted(messages: Anthropic) -> None:
    counted = messages.messages.count_tokens(model="demo", messages=MESSAGES)
    said = messages.messages.create(model="demo", messages=MESSAGES, max_tokens=1)
    assert counted.input_tokens == said.usage.input_tokens > 0


def test_a_stream_of_messages_is_the_whole_message(messages: Anthropic) -> None:
    arguments: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = messages.messages.create(**arguments).content[0]
    with messages.messages.stream(**arguments) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()
    assert whole.type == "text"
    assert "".join(parts) == whole.text
    assert len(parts) > 1
    assert final.usage.output_tokens > 0


def test_errors_of_messages_are_the_clients_exceptions(messages: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="huge"):
        messages.messages.create(model="huge", messages=MESSAGES, max_tokens=8)
    with pytest.raises(anthropic.BadRequestError):
        messages.messages.create(model="demo", messages=[{"role": "nobody", "content": 1}], max_tokens=8)  # type: ignore[list-item,typeddict-item]


def test_a_chat_and_its_stream_say_the_same(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    asked: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    parts = client.chat.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content != ""
    assert whole.usage.completion_tokens <= 16


def test_completions_with_two_choices(client: OpenAI) -> None:
    said = client.completions.create(
        model="demo", prompt=["import os", "def add("], n=2, max_tokens=8, temperature=1.0, seed=3, logprobs=1
    )
    assert [choice.index for choice in said.choices] == [0, 1, 2, 3]
    assert said.choices[0].logprobs is not None
    parts = list(client.completions.create(model="demo", prompt="import os", n=2, max_tokens=8, stream=True))
    assert {choice.index for part in parts for choice in part.choices} == {0, 1}


def test_stream_options_decide_about_usage(client: OpenAI) -> None:
    for options, wanted in (({"include_usage": True}, 1), ({"include_usage": False}, 0), (None, 0)):
        parts = client.chat.completions.create(
            model="demo",
            messages=MESSAGES,
            max_tokens=8,
            stream=True,
            n=2,
            stream_options=options,  # type: ignore[arg-type]
        )
        assert sum(part.usage is not None for part in parts) == wanted


def test_responses(client: OpenAI) -> None:
    said = client.responses.create(model="demo", input="Say hello.", max_output_tokens=16, temperature=0)
    assert said.output_text
    assert said.usage is not None
    kinds, text = [], ""
    for event in client.responses.create(
        model="demo", input="Say hello.", max_output_tokens=16, temperature=0, stream=True
    ):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert text == said.output_text


def test_stored_responses(client: OpenAI) -> None:
    first = client.responses.create(model="demo", input="My name is Ann.", max_output_tokens=8)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    after = client.responses.create(
        model="demo", input="Say my name.", previous_response_id=first.id, max_output_tokens=8
    )
    assert after.previous_response_id == first.id
    assert after.usage is not None
    assert first.usage is not None
    assert after.usage.input_tokens > first.usage.input_tokens
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        client.responses.retrieve("resp_none")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(first.id)


def test_a_response_in_the_background_is_cancelled(client: OpenAI) -> None:
    made = client.responses.create(
        model="demo", input="Count.", background=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
    )
    assert made.status in ("queued", "in_progress")
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).status == "cancelled"


def test_apis_of_other_kinds_of_model_are_not_there(client: OpenAI) -> None:
    """The routes lead to the engine, which has them for other models alone."""
    for path, body in (("pooling", {"input": "hi"}), ("classify", {"input": "hi"})):
        with pytest.raises(openai.NotFoundError):
            client.post(
                f"{str(client.base_url).removesuffix('v1/')}{path}", cast_to=object, body={"model": "demo", **body}
            )


def test_tools_reach_the_engine(client: OpenAI) -> None:
    arguments: Any = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 16}
    assert client.chat.completions.create(**arguments, tool_choice="none").choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):  # this engine has none, and says so itself
        client.chat.completions.create(**arguments, tool_choice={"type": "function", "function": {"name": "add"}})


def test_what_keeps_a_stream_alive_comes_before_its_content(stack: Stack, gateway: str) -> None:
    """The API server answers while its engine stands still, as it does while requests wait or are prefilled."""
    [core] = [pid for pid in tree(stack.process.pid) if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]
    body = {"model": "demo", "messages": MESSAGES, "max_tokens": 8, "stream": True}
    os.kill(core, signal.SIGSTOP)
    try:
        with httpx.stream("POST", f"{gateway}/v1/chat/completions", json=body, timeout=60.0) as reply:
            assert reply.status_code == 200
            lines = reply.iter_lines()
            assert next(lines) == ": keep-alive"
            os.kill(core, signal.SIGCONT)
            data = [line for line in lines if line.startswith("data: ")]
    finally:
        os.kill(core, signal.SIGCONT)
    assert data[-1] == "data: [DONE]"
    assert any(choice["delta"].get("content") for line in data[:-1] for choice in json.loads(line[6:])["choices"])


def test_embeddings_of_a_model_that_has_none_are_an_error(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="demo", input="hello")
    assert 400 <= caught.value.status_code < 500 or caught.value.status_code == 501
    assert caught.value.body["message"]  # type: ignore[index]


SUITES = Path(__file__).parent / "client_suites"
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


@pytest.mark.extended("clients of others")
def test_the_openai_package_of_node(gateway: str) -> None:
    folder = node_folder("openai@6.49.0")
    suite = shutil.copy(SUITES / "openai_node.mjs", folder)  # modules are looked for beside it
    done = subprocess.run(["node", suite, gateway], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = re.findall(r'^  async (?:\w+|".*")\(\)', Path(suite).read_text(), re.MULTILINE)
    assert len(cases) > 9
    assert done.stdout.count("ok: ") == len(cases)


@pytest.mark.extended("clients of others")
@pytest.mark.parametrize(
    ("suite", "package"),
    [("langchain_suite", "langchain-openai==1.7.4"), ("pydantic_ai_suite", "pydantic-ai-slim[openai]==2.68.0")],
)
def test_clients_built_upon_it(gateway: str, suite: str, package: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(python_folder(package)), "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(SUITES / f"{suite}.py"), gateway]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-3000:]


def test_the_request_of_the_readme_gets_what_it_asks_for(client: OpenAI) -> None:
    [found] = re.findall(r"chat/completions .*?-d '(.*?)'", README, re.DOTALL)
    said = client.chat.completions.create(**json.loads(found))
    assert "catalogue_number" in said.choices[0].message.content
    if said.choices[0].finish_reason == "stop":
        assert json.loads(said.choices[0].message.content)


@pytest.mark.extended("clients of others")
def test_vllm_bench_serve_runs_through_the_gateway(gateway: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BENCH_SERVE, "--base-url", gateway, "--model", "demo"]
    command += ["--tokenizer", str(DEMO_MODEL / "target"), "--backend", "openai-chat"]
    command += ["--endpoint", "/v1/chat/completions", "--dataset-name", "random", "--random-input-len", "24"]
    command += ["--random-output-len", "24", "--num-prompts", "6", "--disable-tqdm", "--ignore-eos"]
    command += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "figures.json").read_text())["completed"] == 6

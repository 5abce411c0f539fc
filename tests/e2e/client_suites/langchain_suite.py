"""LangChain's OpenAI client against a gateway: `python langchain_suite.py URL`."""

import asyncio
import sys

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

URL = sys.argv[1]
GIVEN = {"base_url": f"{URL}/v1", "api_key": "none", "model": "demo", "temperature": 0, "max_retries": 0}
CHAT = ChatOpenAI(**GIVEN, max_tokens=16)
ASKED = [SystemMessage("You are terse."), HumanMessage("Write a function that adds two numbers.")]

said = CHAT.invoke(ASKED)
assert said.content
assert said.usage_metadata["output_tokens"] <= 16
assert said.response_metadata["model_name"] == "demo"

parts = list(CHAT.stream(ASKED, stream_usage=True))
whole = parts[0]
for part in parts[1:]:
    whole += part
assert whole.content == said.content
assert whole.usage_metadata["input_tokens"] == said.usage_metadata["input_tokens"]

turns = [*ASKED, AIMessage(said.content), HumanMessage("Shorter, please.")]
assert CHAT.invoke(turns).usage_metadata["input_tokens"] > said.usage_metadata["input_tokens"]

answers = CHAT.batch([ASKED] * 8)
assert {answer.content for answer in answers} == {said.content}


async def later() -> None:
    assert (await CHAT.ainvoke(ASKED)).content == said.content
    assert "".join([part.content async for part in CHAT.astream(ASKED)]) == said.content


asyncio.run(later())

assert OpenAI(**GIVEN, max_tokens=8).invoke("import os")

bound = CHAT.bind(response_format={"type": "json_object"}, max_tokens=24)
assert bound.invoke(ASKED).content.lstrip().startswith("{")

classed = ChatOpenAI(**GIVEN, max_tokens=4, default_headers={"X-Traffic-Class": "code"}, extra_body={"priority": 1})
assert classed.invoke(ASKED).content

through_responses = ChatOpenAI(**GIVEN, max_tokens=16, use_responses_api=True)
assert through_responses.invoke("Say hello.").text

for wrong, kind in (({"model": "huge"}, openai.NotFoundError), ({"max_tokens": -1}, openai.BadRequestError)):
    try:
        ChatOpenAI(**{**GIVEN, **wrong}).invoke(ASKED)
    except kind:
        continue
    raise AssertionError(f"{wrong} was no {kind}")
sys.stdout.write("ok\n")

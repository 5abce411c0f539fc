"""pydantic-ai against a gateway: `python pydantic_ai_suite.py URL`."""

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

PROVIDER = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
SETTINGS = ModelSettings(max_tokens=16, temperature=0)
ASKED = "Write a function that adds two numbers."


async def main() -> None:
    agent = Agent(OpenAIChatModel("demo", provider=PROVIDER), model_settings=SETTINGS, instructions="You are terse.")
    said = await agent.run(ASKED)
    assert said.output
    assert 0 < said.usage.output_tokens <= 16

    async with agent.run_stream(ASKED) as stream:
        parts = [part async for part in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(parts) == said.output
    assert len(parts) > 1
    assert stream.usage.output_tokens > 0

    after = await agent.run("Shorter, please.", message_history=said.all_messages())
    assert after.usage.input_tokens > said.usage.input_tokens

    several = await asyncio.gather(*(agent.run(ASKED) for _ in range(8)))
    assert {one.output for one in several} == {said.output}

    through_responses = Agent(OpenAIResponsesModel("demo", provider=PROVIDER), model_settings=SETTINGS)
    assert (await through_responses.run("Say hello.")).output

    try:
        await Agent(OpenAIChatModel("huge", provider=PROVIDER)).run(ASKED)
    except ModelHTTPError as error:
        assert error.status_code == 404
    else:
        raise AssertionError("a model that is not there was no error")
    sys.stdout.write("ok\n")


asyncio.run(main())

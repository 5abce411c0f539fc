"""One streamed chat request to any OpenAI-compatible server, timed like `vllm bench serve`.

TTFT is the time from sending to the first event with generated content; an opening event with the role alone does not
count. ITL are the gaps between such events: with speculation an event may carry several tokens. The latency ends with
the last of them. Tokens are the server's own count (`stream_options.include_usage`).
"""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from specpilot.bench.load.answer import Answer
from specpilot.policy.http_client import is_on_this_machine

OK = 200
REQUEST_TIMEOUT_S = 600.0
"""Longest wait for a whole reply, in seconds."""

_SHOWN_CHARACTERS = 300
_FAILED = (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError)
_MALFORMED = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""Exceptions from reading an event that does not have the shape of OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of replies. `ignore_eos` gives every reply its full length.

    Only vLLM and SGLang know this field. Requests with it also have `cache_salt`, which only these two know.
    """

    temperature: float = 0.0
    ignore_eos: bool = True


class ChatClient:
    """Sends requests to one server; an async context manager that owns its connections.

    Its `cache_salt` excludes other clients' entries of the prefix cache; its own requests share theirs.
    """

    def __init__(self, base_url: str, model: str, sampling: Sampling, api_key: str | None = None) -> None:
        self._url = f"{base_url.rstrip('/')}/v1/chat/completions"
        self._model = model
        self._sampling = sampling
        self._cache_salt = secrets.token_hex(16)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            read_bufsize=1 << 20,
            headers=self._headers,
            trust_env=not is_on_this_machine(self._url),
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._session.close()

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int, seed: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Answer:
        """Return the answer; every failure of the server or the connection is its `error`."""
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": self._sampling.temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._sampling.ignore_eos:
            body |= {"ignore_eos": True, "cache_salt": self._cache_salt}
        if tools:
            body["tools"] = list(tools)
        answer = Answer(started=time.perf_counter())
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != OK:
                    text = (await response.text())[:_SHOWN_CHARACTERS]
                    answer.error = f"status {response.status}: {text}"
                    return answer
                await _read(response.content, answer)
        except (*_FAILED, *_MALFORMED) as error:
            answer.error = f"{type(error).__name__}: {error}"[:_SHOWN_CHARACTERS]
            return answer
        if answer.latency_s is None:
            answer.error = "the stream held no generated content"
        elif answer.output_tokens is None:
            answer.error = "the stream held no usage; the server must know stream_options.include_usage"
        return answer


async def _read(stream: aiohttp.StreamReader, answer: Answer) -> None:
    """Read server-sent events to the end. Raises `ValueError` for an event that is not JSON or is an error."""
    last = answer.started
    is_done = False
    async for raw in stream:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        now = time.perf_counter()
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"error event: {event['error']}")
        if usage := event.get("usage"):
            answer.input_tokens = usage.get("prompt_tokens")
            answer.output_tokens = usage.get("completion_tokens")
        choices = event.get("choices")
        if not choices or _is_opening(choices[0]):
            continue
        _add(choices[0]["delta"], answer)
        if answer.ttft_s is None:
            answer.ttft_s = now - answer.started
        else:
            answer.itl_s.append(now - last)
        last = now
        answer.latency_s = now - answer.started
    if not is_done:
        raise ValueError("the stream broke off before [DONE]")


def _is_opening(choice: Mapping[str, Any]) -> bool:
    """Return whether the event has the role alone."""
    delta = choice["delta"]
    made = (delta.get(name) for name in ("content", "tool_calls", "reasoning", "reasoning_content"))
    return "role" in delta and not any(made) and choice.get("finish_reason") is None


def _add(delta: Mapping[str, Any], answer: Answer) -> None:
    answer.text += delta.get("content") or ""
    for part in delta.get("tool_calls") or ():
        call = answer.tool_calls.setdefault(
            part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id") or call["id"]
        for name in ("name", "arguments"):
            call["function"][name] += (part.get("function") or {}).get(name) or ""

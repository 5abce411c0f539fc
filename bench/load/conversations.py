"""Plays conversations against one server, closed loop or open loop, and returns every answer.

Closed: a set number of conversations in flight; as one ends the next begins. Open: conversations begin at given times,
independent of the server, like users; a server that is too slow builds up a queue. The turns of a conversation are sent
one after another, each with the replies so far. Runs with the same arguments play the same conversations, lengths and
seeds, so that the arms of a comparison do the same work.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot.bench.data.conversation import Conversation
from specpilot.bench.load.answer import Answer, Run
from specpilot.bench.load.chat_client import ChatClient


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a run: `count` whole conversations from `first` on, cyclically.

    A reply is `output_tokens` long, varied by up to `spread` of it (0..1), but never longer than its conversation
    allows; `think_time_s` passes between two turns.
    """

    conversations: Sequence[Conversation]
    count: int
    first: int = 0
    output_tokens: int = 128
    spread: float = 0.5
    think_time_s: float = 0.0

    def pieces(self) -> Iterator[tuple[int, Conversation]]:
        """Yield each conversation with its number."""
        for number in range(self.first, self.first + self.count):
            yield number, self.conversations[number % len(self.conversations)]

    def max_tokens(self, number: int, turn: int, conversation: Conversation) -> int:
        """Return the length of the reply to a turn of conversation `number`, the same in every run."""
        drawn = random.Random(f"{number}/{turn}").uniform(1.0 - self.spread, 1.0 + self.spread)  # noqa: S311 - a load
        length = max(1, round(self.output_tokens * drawn))
        return length if conversation.max_tokens is None else min(length, conversation.max_tokens)


async def closed_loop(client: ChatClient, work: Work, concurrency: int) -> Run:
    """Play `work` with `concurrency` conversations in flight."""
    pieces = work.pieces()
    answers: list[Answer] = []

    async def slot() -> None:
        for number, conversation in pieces:
            await _converse(client, work, number, conversation, answers)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(slot())
    return Run(answers, time.perf_counter() - began)


async def open_loop(client: ChatClient, work: Work, arrivals_s: Sequence[float]) -> Run:
    """Play `work`, its conversations beginning `arrivals_s` seconds from now, one arrival for each."""
    answers: list[Answer] = []
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for at, (number, conversation) in zip(arrivals_s, work.pieces(), strict=True):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            group.create_task(_converse(client, work, number, conversation, answers))
    return Run(answers, time.perf_counter() - began)


async def _converse(
    client: ChatClient, work: Work, number: int, conversation: Conversation, answers: list[Answer]
) -> None:
    """Play one conversation, up to its first failed turn."""
    messages: list[Any] = []
    for turn, added in enumerate(conversation.turns):
        if turn and work.think_time_s:
            await asyncio.sleep(work.think_time_s)
        messages += added
        length = work.max_tokens(number, turn, conversation)
        answer = await client.ask(messages, length, number, conversation.tools)
        answers.append(answer)
        if answer.error is not None:
            return
        messages.append(answer.message)

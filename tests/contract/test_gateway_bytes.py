"""Bytes in equal bytes out, for ten thousand answers of every shape, by their SHA-256."""

import asyncio
import hashlib

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import ASKING, Client, request
from tests.support.random_streams import random_stream
from tests.support.scripted_engine import Script, ScriptedEngine, Seen

STREAMS = 10_000
CONNECTIONS = 24


async def test_ten_thousand_random_streams_are_equal_by_hash(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    program = await start_program("--no-access-log")
    sent: dict[int, bytes] = {}
    unlike: list[int] = []
    numbers = iter(range(STREAMS))

    def play(seen: Seen) -> Script:
        number = seen.json["seed"]
        found = random_stream(number)
        sent[number] = hashlib.sha256(found.payload).digest()
        return found.steps

    async def ask() -> None:
        client = await Client.connect(program.port)
        for number in numbers:
            is_modern = number % 20 > 0
            call = request({**ASKING, "seed": number})
            client.send(call if is_modern else call.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            answer = await client.answer()
            if not (answer.status == 200 and answer.is_whole) or hashlib.sha256(answer.body).digest() != sent[number]:
                unlike.append(number)
            if answer.headers.get("connection") == "close":
                client.close()
                client = await Client.connect(program.port)
        client.close()

    engine.choose = play
    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    assert unlike == []
    assert len(engine.seen) == STREAMS

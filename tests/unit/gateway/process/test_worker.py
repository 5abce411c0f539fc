import asyncio
import socket
from collections.abc import Iterator
from itertools import count
from typing import cast

import pytest

from specpilot.gateway.process import worker
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker import READ, READY, REDIS_WAIT_S, Worker
from specpilot.gateway.process.worker_rules import Order
from specpilot.gateway.relay.context import GatewayContext
from specpilot.policy.errors import StoreUnavailableError

READ_S = 0.5


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The supervisor's end and the worker's."""
    monkeypatch.setattr(worker, "RETRY_S", 0.0)
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


class Redis:
    """Answers from the `answers_at`th read on."""

    def __init__(self, answers_at: int | None) -> None:
        self.answers_at = answers_at
        self.reads = 0

    def read(self) -> None:
        self.reads += 1
        if self.answers_at is None or self.reads < self.answers_at:
            raise StoreUnavailableError("gone")


def read_redis_first(theirs: socket.socket, redis: Redis) -> None:
    """Each reading of the clock is half a second later."""
    ticks = count()
    Worker(3, theirs, theirs).read_redis_first(redis.read, lambda: next(ticks) * READ_S)


@pytest.mark.parametrize(("answers_at", "said"), [(1, []), (5, ["WARNING"])])  # once, not at every try
def test_a_worker_that_is_to_replace_another_tries_until_it_has_read_redis(
    answers_at: int, said: list[str], channel: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    redis = Redis(answers_at)
    read_redis_first(channel[1], redis)
    assert redis.reads == answers_at
    assert [record.levelname for record in caplog.records] == said
    assert ("the old worker serves on" in caplog.text) == bool(said)


def test_after_a_while_it_ends_and_says_what_happens_and_what_to_do(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    redis = Redis(answers_at=None)
    with pytest.raises(StartError) as raised:
        read_redis_first(channel[1], redis)
    assert redis.reads == REDIS_WAIT_S / READ_S
    (line,) = raised.value.lines
    assert line == (
        "--redis-url: gone; the old worker stays, as a new one would not know the API keys in Redis; "
        "reload again when Redis answers"
    )


@pytest.mark.parametrize("is_gone", [False, True])
def test_nobody_waits_who_has_the_slot_to_himself_or_no_supervisor(
    channel: tuple[socket.socket, socket.socket], *, is_gone: bool
) -> None:
    mine, theirs = channel
    if is_gone:
        mine.close()
    else:
        mine.send(Order.SKIP_REDIS.value)
    redis = Redis(answers_at=None)
    with pytest.raises(StoreUnavailableError):
        read_redis_first(theirs, redis)
    assert redis.reads == 1


class Counts:
    """Stands for a context with one number."""

    has_named_series = True

    def tally(self) -> bytes:
        return b'{"retries":1}'


@pytest.mark.parametrize("ends", ["before the worker is ready", "before it reads that", "while it is scraped"])
async def test_a_worker_whose_supervisor_has_died_drains_and_shows_no_partial_sums(
    ends: str, channel: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = channel
    orphaned = asyncio.Event()
    place, context = Worker(0, theirs, theirs), cast("GatewayContext", Counts())
    if ends == "before the worker is ready":
        ours.close()
    await place.connect()
    following = asyncio.create_task(place.follow(lambda: None, orphaned.set))
    scraping = asyncio.create_task(place.exposition(context))
    if ends == "while it is scraped":
        await asyncio.sleep(0.1)
    ours.close()
    await orphaned.wait()
    await following
    with pytest.raises(ConnectionError):
        await scraping
    with pytest.raises(ConnectionError):
        await place.exposition(context)
    await place.close(context)


async def test_a_scrape_shows_the_numbers_of_all_after_the_workers_own(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = channel
    place, context = Worker(0, theirs, theirs), cast("GatewayContext", Counts())
    await place.connect()
    following = asyncio.create_task(place.follow(lambda: None, lambda: None))
    scraping = asyncio.create_task(place.exposition(context))
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    assert [await reader.readline() for _ in range(3)] == [READY, context.tally() + b"\n", READ]
    writer.write(b'[{"retries":3},{"retries":1}]\n')
    assert b"specpilot_gateway_retries_total 4.0\n" in await scraping
    await place.close(context)
    assert await reader.read() == context.tally() + b"\n"  # what it counted last
    writer.close()
    await following

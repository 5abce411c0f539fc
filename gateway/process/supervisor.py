"""The parent of several workers: starts them, supervises them, and passes signals on. It serves no request.

`gateway.process.worker_rules` decides; this module performs its actions. The parent makes each slot's listening socket
and passes it to the slot's workers one after another, so that no connection is lost in a replacement. When a worker
dies and is not replaced at once, the parent closes the socket: the kernel then gives new connections to the other
workers. At the end it closes them all, so that no connection waits for a worker that has ended. One further socket only
reserves the port.

The parent also keeps the last tally of each worker, and the counters of those that have ended: each worker sends its
own, and asks for all of them when it is scraped. A scrape follows the scraped worker's own tally, and a worker's last
tally is read before its end, so no counter decreases, whichever worker answers.

| signal          | effect                                                                               |
|-----------------|--------------------------------------------------------------------------------------|
| SIGTERM, SIGINT | all workers drain, then the program ends with status 0; a second one ends it at once |
| SIGHUP          | the workers are replaced one after another                                           |

Workers run in sessions of their own, so that Ctrl-C reaches the parent alone.

uvicorn's `Multiprocess` does less of this: one worker that cannot start ends all, a worker that keeps dying is started
twice a second, a replacement blocks the parent until the old worker's last stream has ended, the end has no time limit
and no second signal, and workers outlive a parent that was killed.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import orjson

from specpilot.gateway.process.listening import share, url_of
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker import LINE_BYTES, READ, READY
from specpilot.gateway.process.worker_rules import Action, Give, Log, Start, Unlisten, WorkerRules
from specpilot.gateway.telemetry.families import lasting, total
from specpilot.policy.clock import Clock

Event = Callable[[float], list[Action]]
"""Passes an event to the rules, with the time."""

_log = logging.getLogger(__name__)


class _Child:
    """A worker's process, the parent's end of its channel, and its last tally in JSON."""

    def __init__(self, process: subprocess.Popen[bytes], channel: asyncio.StreamWriter) -> None:
        self.process = process
        self.channel = channel
        self.tally = b"{}"


class Supervisor:
    """Performs the actions of `rules`. `flags` are the program's own. `is_tls`: the workers speak TLS."""

    def __init__(
        self, rules: WorkerRules, reserved: socket.socket, flags: Sequence[str], clock: Clock, *, is_tls: bool = False
    ) -> None:
        self._rules = rules
        self._reserved = reserved
        self._flags = flags
        self._monotonic = clock.monotonic
        self._children: dict[int, _Child] = {}
        self._ended: dict[str, Any] = {}  # the counters of workers that have ended
        self._listeners: dict[int, socket.socket] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_listened = False
        self._is_tls = is_tls

    async def run(self) -> int:
        """Run until the program is to end; return its exit status."""
        rules = self._rules
        on_signal: dict[int, Event] = {
            signal.SIGTERM: rules.stop,
            signal.SIGINT: rules.stop,
            signal.SIGHUP: rules.reload,
        }
        for number, event in on_signal.items():
            asyncio.get_running_loop().add_signal_handler(number, self._events.put_nowait, event)
        while not rules.is_over:
            await self._perform(rules.due(self._monotonic()))
            try:
                async with asyncio.timeout(rules.wait_s(self._monotonic())):
                    event = await self._events.get()
            except TimeoutError:
                continue
            await self._perform(event(self._monotonic()))
            if rules.is_stopping:
                while self._listeners:
                    self._listeners.popitem()[1].close()
        return rules.status

    async def _follow(self, worker: int, child: _Child, reader: asyncio.StreamReader) -> None:
        """Take the messages of `worker` until it has ended."""
        with suppress(ConnectionError):
            while (line := await reader.readline()).endswith(b"\n"):
                if line == READY:
                    if not self._has_listened:
                        self._has_listened = True
                        _log.info("listening on %s", url_of(self._reserved, is_tls=self._is_tls))
                    self._events.put_nowait(partial(self._rules.ready, worker))
                elif line == READ:
                    tallies = (orjson.dumps(self._ended), *(other.tally for other in self._children.values()))
                    child.channel.write(b"[%s]\n" % b",".join(tallies))
                else:
                    child.tally = line.rstrip()
        status = await asyncio.to_thread(child.process.wait)  # it has closed its end of the channel
        child.channel.close()
        del self._children[worker]
        self._events.put_nowait(partial(self._rules.ended, worker, status))
        self._ended = lasting(total((self._ended, orjson.loads(child.tally))))

    async def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(worker, slot):
                    try:
                        await self._start(worker, slot)
                    except (OSError, StartError) as error:
                        _log.error("worker %d cannot be started: %s", worker, error)
                        self._events.put_nowait(partial(self._rules.ended, worker, 1))
                case Unlisten(slot):
                    if slot in self._listeners:
                        self._listeners.pop(slot).close()
                case Log(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, text)
                case Give(worker, order):
                    child = self._children.get(worker)
                    if child is None:  # it has ended, or could not be started
                        continue
                    if isinstance(order.value, bytes):
                        child.channel.write(order.value)
                    else:
                        child.process.send_signal(order.value)

    async def _start(self, worker: int, slot: int) -> None:
        listener = self._listeners.get(slot)
        if listener is None:
            listener = self._listeners[slot] = share(self._reserved)
        parent_end, worker_end = socket.socketpair()
        inherited = (listener.fileno(), worker_end.fileno())
        with worker_end:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - a start takes milliseconds; the command is ours
                [
                    *(sys.executable, "-P", "-m", "specpilot.gateway.worker_program"),
                    *(str(worker), *map(str, inherited), *self._flags),
                ],
                env=os.environ,
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,
            )
        reader, channel = await asyncio.open_unix_connection(sock=parent_end, limit=LINE_BYTES)
        child = self._children[worker] = _Child(process, channel)
        task = asyncio.get_running_loop().create_task(self._follow(worker, child, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""The parent of several workers: starts them, supervises them, and passes signals on. It serves no request.

`gateway.process.worker_rules` decides; this module performs its actions. The parent makes each slot's listening socket
and passes it to the slot's workers one after another, so that no connection is lost in a replacement. When a worker
dies and is not replaced at once, the parent closes the socket: the kernel then gives new connections to the other
workers. One further socket only reserves the port.

| signal          | effect                                                                               |
|-----------------|--------------------------------------------------------------------------------------|
| SIGTERM, SIGINT | all workers drain, then the program ends with status 0; a second one ends it at once |
| SIGHUP          | the workers are replaced one after another                                           |

Workers run in sessions of their own, so that Ctrl-C reaches the parent alone.

uvicorn's `Multiprocess` does less of this: one worker that cannot start ends all, a worker that keeps dying is started
twice a second, a replacement blocks the parent until the old worker's last stream has ended, the end has no time limit
and no second signal, and workers outlive a parent that was killed.
"""

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from specpilot.gateway.process.listening import share, url_of
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker import READY, RETIRE, SKIP_REDIS
from specpilot.gateway.process.worker_rules import (
    Action,
    Kill,
    Log,
    Retire,
    SkipRedis,
    Start,
    Stop,
    Unlisten,
    WorkerRules,
)
from specpilot.gateway.telemetry.worker_files import Ledger
from specpilot.policy.clock import Clock

LEDGER_S: Final = 60.0
"""Seconds after which the unchanged ledger is written again, because cleaners of temporary files remove old files."""

_log = logging.getLogger(__name__)


class _Child:
    """A worker's process, and the parent's end of its channel."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel


class Supervisor:
    """Performs the actions of `rules`.

    `flags` are the program's own. `folder` holds the workers' tallies, and `ledger` their ledger. `is_tls`: the
    workers speak TLS.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the collaborators of a whole program
        self,
        rules: WorkerRules,
        reserved: socket.socket,
        folder: Path,
        ledger: Ledger,
        flags: Sequence[str],
        clock: Clock,
        *,
        is_tls: bool = False,
    ) -> None:
        self._rules = rules
        self._reserved = reserved
        self._folder = folder
        self._flags = flags
        self._monotonic = clock.monotonic
        self._ledger = ledger
        self._children: dict[int, _Child] = {}
        self._listeners: dict[int, socket.socket] = {}
        self._signals: list[int] = []
        self._has_listened = False
        self._is_tls = is_tls

    def run(self) -> int:
        """Run until the program is to end; return its exit status."""
        waking, woken = socket.socketpair()
        with selectors.DefaultSelector() as selector, waking, woken:
            self._selector = selector
            for end in (waking, woken):
                end.setblocking(False)
            selector.register(woken, selectors.EVENT_READ)
            signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, self._on_signal)
            while not self._rules.is_over:
                self._perform(self._rules.due(self._monotonic()))
                wait_s = self._rules.wait_s(self._monotonic())
                events = selector.select(LEDGER_S if wait_s is None else min(wait_s, LEDGER_S))
                if not events:
                    self._write_ledger(self._ledger.write)
                for key, _ in events:
                    if key.fileobj is woken:
                        woken.recv(4096)
                        self._on_signals()
                    else:
                        self._on_channel(key.data)
            signal.set_wakeup_fd(-1)
        for listener in self._listeners.values():
            listener.close()
        return self._rules.status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._signals.append(number)

    def _on_signals(self) -> None:
        signals, self._signals = self._signals, []
        for number in signals:
            now = self._monotonic()
            is_reload = number == signal.SIGHUP
            self._perform(self._rules.reload(now) if is_reload else self._rules.stop(now))

    def _on_channel(self, worker: int) -> None:
        child = self._children[worker]
        try:
            message = child.channel.recv(16)
        except ConnectionError:
            message = b""
        if message == READY:
            self._perform(self._rules.ready(worker, self._monotonic()))
            if not self._has_listened:
                self._has_listened = True
                _log.info("listening on %s", url_of(self._reserved, is_tls=self._is_tls))
        elif not message:
            self._selector.unregister(child.channel)
            child.channel.close()
            status = child.process.wait()  # only the end of the process closes its end of the channel
            del self._children[worker]
            self._write_ledger(partial(self._ledger.close, worker))
            self._perform(self._rules.ended(worker, status, self._monotonic()))

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(worker, slot):
                    self._write_ledger(partial(self._ledger.open, worker))
                    try:
                        self._start(worker, slot)
                    except (OSError, StartError) as error:
                        _log.error("worker %d cannot be started: %s", worker, error)
                        self._write_ledger(partial(self._ledger.close, worker))
                        self._perform(self._rules.ended(worker, 1, self._monotonic()))
                case SkipRedis(worker) | Retire(worker):
                    self._send(worker, RETIRE if isinstance(action, Retire) else SKIP_REDIS)
                case Stop(worker):
                    self._children[worker].process.terminate()
                case Kill(worker):
                    self._children[worker].process.kill()
                case Unlisten(slot):
                    if slot in self._listeners:
                        self._listeners.pop(slot).close()
                case Log(text, is_warning):
                    _log.log(logging.WARNING if is_warning else logging.INFO, text)

    def _send(self, worker: int, order: bytes) -> None:
        child = self._children.get(worker)
        if child is not None:  # else it could not be started
            with suppress(BrokenPipeError):  # it is dead, and `_on_channel` will notice
                child.channel.send(order)

    def _write_ledger(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            _log.error("the workers' counts cannot be kept, /metrics will be wrong or missing: %s", error)

    def _start(self, worker: int, slot: int) -> None:
        listener = self._listeners.get(slot)
        if listener is None:
            listener = self._listeners[slot] = share(self._reserved)
        parent_end, worker_end = socket.socketpair()
        inherited = (listener.fileno(), worker_end.fileno())
        place = (str(worker), *map(str, inherited), str(self._folder))
        process = subprocess.Popen(  # noqa: S603 - the command is ours
            [sys.executable, "-P", "-m", "specpilot.gateway.worker_program", *place, *self._flags],
            env=os.environ,
            stdin=subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
        )
        worker_end.close()
        parent_end.setblocking(False)
        self._children[worker] = _Child(process, parent_end)
        self._selector.register(parent_end, selectors.EVENT_READ, worker)

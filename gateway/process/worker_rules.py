"""Decides for the parent of several workers: start, replace, retire, stop, give up. Pure; times are monotonic seconds.

Each slot has one worker that serves, and a listening socket (see `gateway.process.supervisor`).

| phase of a worker | entered by | next phase                                                   |
|-------------------|------------|--------------------------------------------------------------|
| starting          | `Start`    | serving, when it reports ready; killed after `START_LIMIT_S` |
| serving           | `ready`    | leaving, when a newer worker of its slot is ready            |
| leaving           | `RETIRE`   | ended                                                        |

1. Start. The first worker starts alone, so that a bad setting is reported once. The others start when it is ready.
2. Death while serving. The worker is replaced: at once if it lived for `HEALTHY_S`, else after a pause that doubles
   from `PAUSE_S` to `PAUSE_LIMIT_S`. Its slot stops listening, so that the other workers get its connections.
3. Death before ready. The program ends if no other worker serves or starts; else the slot is treated as in 2. So a
   serving gateway continues if new workers cannot start for any reason.
4. Reload. Slot by slot, a new worker starts on the slot's socket, and the old one retires when it is ready. A worker
   that was starting may have read the old settings, so it is replaced too, once it is ready. A new worker that dies
   before it is ready ends the reload, and the old one stays; unless a further reload was requested since that new
   worker started.
5. Redis. A worker that is alone in its slot, from its start or since the old worker died, gets `SKIP_REDIS`: it serves
   with the API keys that it has. A worker that replaces another waits until it has read Redis (see
   `gateway.process.worker`).
6. Stop. Every worker is stopped; those that have not ended after `stop_limit_s` are killed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from signal import SIGKILL, SIGTERM
from typing import Final

PAUSE_S: Final = 1.0
"""Seconds before a worker that died early is replaced, the first time."""

PAUSE_LIMIT_S: Final = 30.0
"""Seconds of the longest such pause. With a larger value the machine has less load; with a smaller one service is
restored sooner."""

HEALTHY_S: Final = 60.0
"""Seconds of life after which a dead worker is replaced at once."""

START_LIMIT_S: Final = 60.0
"""Seconds that a worker may take to get ready before it is killed."""


FAULT_STATUS = 2
"""The exit status of a worker that has already reported the setting at fault."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start `worker` on the socket of `slot`."""

    worker: int
    slot: int


class Order(Enum):
    """What a worker is ordered to do: a line on its channel, or a signal."""

    SKIP_REDIS = b"skip\n"
    """It is starting, and no other worker serves in its slot."""
    RETIRE = b"retire\n"
    """Leave the port to a newer worker and finish."""
    STOP = SIGTERM
    """Drain and end; end at once if it drains already."""
    KILL = SIGKILL


@dataclass(frozen=True, slots=True)
class Give:
    """Give `worker` an `order`."""

    worker: int
    order: Order


@dataclass(frozen=True, slots=True)
class Unlisten:
    """Close the socket of `slot`: no worker accepts there."""

    slot: int


@dataclass(frozen=True, slots=True)
class Log:
    """Log `text`."""

    text: str
    is_warning: bool = False


Action = Start | Give | Unlisten | Log


class _Phase(Enum):
    STARTING = auto()
    SERVING = auto()
    LEAVING = auto()


@dataclass(slots=True)
class _Worker:
    slot: int
    started_at: float
    phase: _Phase = _Phase.STARTING


class WorkerRules:
    """The state of `slots` workers. Every method returns the actions to perform now, in order."""

    def __init__(self, slots: int, stop_limit_s: float) -> None:
        self._slots = slots
        self._stop_limit_s = stop_limit_s
        self._workers: dict[int, _Worker] = {}
        self._last = 0
        self._due_at: dict[int, float] = {0: float("-inf")}
        self._pause_s = dict.fromkeys(range(slots), 0.0)
        self._to_reload: list[int] = []
        self._kill_at: float | None = None
        self._has_begun = False
        self.is_stopping = False
        self.status = 0

    @property
    def is_over(self) -> bool:
        """Whether the program ends, with `status`."""
        return self.is_stopping and not self._workers

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until `due` has an action; `None` while it waits for an event."""
        times = list(self._due_at.values())
        times += [item.started_at + START_LIMIT_S for item in self._in(_Phase.STARTING)]
        if self._kill_at is not None:
            times.append(self._kill_at)
        return max(0.0, min(times) - now) if times else None

    def due(self, now: float) -> list[Action]:
        """Return the actions that are due."""
        actions: list[Action] = []
        for slot in [slot for slot, at in self._due_at.items() if at <= now]:
            del self._due_at[slot]
            actions += (self._start(slot, now), Give(self._last, Order.SKIP_REDIS))
        for number, item in self._workers.items():
            if item.phase is _Phase.STARTING and now - item.started_at >= START_LIMIT_S:
                item.started_at = now
                actions += (
                    Log(f"worker {number} does not become ready; killing it", is_warning=True),
                    Give(number, Order.KILL),
                )
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            actions += (Give(number, Order.KILL) for number in self._workers)
        return actions

    def ready(self, worker: int, now: float) -> list[Action]:
        """`worker` accepts requests."""
        item = self._workers[worker]
        if self.is_stopping or item.phase is not _Phase.STARTING:
            return []
        item.phase = _Phase.SERVING
        actions: list[Action] = [Log(f"worker {worker} serves")]
        if not self._has_begun:  # 1
            self._has_begun = True
            self._due_at |= dict.fromkeys(range(1, self._slots), now)
        for number, other in self._workers.items():
            if number != worker and other.slot == item.slot and other.phase is _Phase.SERVING:
                other.phase = _Phase.LEAVING
                actions.append(Give(number, Order.RETIRE))
        return actions + self._reload_next(now)

    def ended(self, worker: int, status: int, now: float) -> list[Action]:
        """`worker` has ended with exit status `status`; a negative one is the signal that killed it."""
        item = self._workers.pop(worker)
        if self.is_stopping or item.phase is _Phase.LEAVING:
            return [] if self.is_stopping else [Log(f"worker {worker} has left")]
        lived_s = now - item.started_at
        line = f"worker {worker} ended with status {status} after {lived_s:.1f} s"
        if item.phase is _Phase.STARTING:
            line += ", before it was ready"
        others = [other for other in self._workers.values() if other.phase is not _Phase.LEAVING]
        if any(other.slot == item.slot for other in others):  # 4: a reload of this slot was under way
            line += "; the slot's other worker goes on"
            if item.phase is _Phase.STARTING and item.slot not in self._to_reload:
                line += ", the reload ends here"
                self._to_reload.clear()
            actions: list[Action] = [Log(line, is_warning=True)]
            for number, other in self._workers.items():
                if other.slot == item.slot and other.phase is _Phase.STARTING:
                    actions.append(Give(number, Order.SKIP_REDIS))
            return actions + self._reload_next(now)
        if item.phase is _Phase.STARTING and not others:  # 3
            return self._give_up(line, status, now)
        # 2
        pause_s = 0.0 if lived_s >= HEALTHY_S else min(PAUSE_LIMIT_S, max(PAUSE_S, 2 * self._pause_s[item.slot]))
        self._pause_s[item.slot] = pause_s
        self._due_at[item.slot] = now + pause_s
        return [Unlisten(item.slot), Log(f"{line}; starting another in {pause_s:.0f} s", is_warning=True)]

    def reload(self, now: float) -> list[Action]:
        """Replace every worker that serves or is starting (4)."""
        if self.is_stopping:
            return []
        self._to_reload = sorted({item.slot for item in self._workers.values() if item.phase is not _Phase.LEAVING})
        return [Log("replacing the workers one after another"), *self._reload_next(now)]

    def stop(self, now: float) -> list[Action]:
        """Stop every worker (6). A worker that is stopped again ends at once."""
        self._to_reload.clear()
        self._due_at.clear()
        if not self.is_stopping:
            self.is_stopping = True
            self._kill_at = now + self._stop_limit_s
        return [Give(number, Order.STOP) for number in self._workers]

    def _give_up(self, line: str, status: int, now: float) -> list[Action]:
        self.status = FAULT_STATUS if status == FAULT_STATUS else 1
        actions = self.stop(now)
        if status != FAULT_STATUS:
            actions.append(Log(f"{line}, and no other serves: giving up; its own lines say why", is_warning=True))
        return actions

    def _reload_next(self, now: float) -> list[Action]:
        if any(self._is_doubled(item) for item in self._in(_Phase.STARTING)):
            return []  # one replacement at a time
        serving = {item.slot for item in self._in(_Phase.SERVING)}
        for slot in self._to_reload:
            if slot in serving:
                return [self._start(slot, now)]
        return []

    def _is_doubled(self, item: _Worker) -> bool:
        return any(other.slot == item.slot for other in self._in(_Phase.SERVING))

    def _start(self, slot: int, now: float) -> Start:
        if slot in self._to_reload:
            self._to_reload.remove(slot)
        self._last += 1
        self._workers[self._last] = _Worker(slot, now)
        return Start(self._last, slot)

    def _in(self, phase: _Phase) -> Iterable[_Worker]:
        return [item for item in self._workers.values() if item.phase is phase]

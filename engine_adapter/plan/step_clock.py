"""Measures steps and the idle time of an engine between them. Pure: times are arguments, in monotonic seconds."""

_SHORTEST_S = 1e-4
"""Seconds; a shorter step counts as this long in the mean, so that idle time can be divided by it."""

_STEP_SHARE = 0.05
"""Weight of a step in the mean duration: a memory of 20 steps."""


class StepClock:
    """Measures the steps of one engine.

    A step lasts from the end of the previous step to its own end, because a running request waits that long for its
    next token. After idle time it lasts from the time at which it was scheduled. The engine is idle while nothing is
    scheduled and no step is under way.

    In vLLM's asynchronous loop the host launches the next step before it processes the outcome of the last one, so the
    time between two outcomes includes another launch. Therefore, if the device reports times, a step lasts from the end
    of the previous step to its own end on the device. If a launch delays the device, the delay is part of the launched
    step.
    """

    def __init__(self) -> None:
        self._ended_at: float | None = None  # the end of the latest step, if the next one lasts from there
        self._idle_since: float | None = None
        self._mean_s = 0.0

    def end_step(self, scheduled_at: float, now: float, device_s: float | None, *, goes_on: bool) -> float:
        """Return the seconds of a step that ends now.

        `device_s`: seconds on the device since the end of the previous step; `None`: unknown. `goes_on`: another step
        is under way or follows.
        """
        seconds = now - (scheduled_at if self._ended_at is None else self._ended_at)
        if device_s is not None and self._ended_at is not None:  # otherwise the device's time contains idle time
            seconds = device_s
        self._ended_at = now if goes_on else None
        self._idle_since = None if goes_on else now
        self._mean_s += (max(seconds, _SHORTEST_S) - self._mean_s) * (_STEP_SHARE if self._mean_s else 1.0)
        return seconds

    def end_idle_time(self, now: float) -> float:
        """Return the length of the idle time that ends now, in steps of mean duration; 0: there was none."""
        if self._idle_since is None:
            return 0.0
        steps = (now - self._idle_since) / self._mean_s
        self._idle_since = None
        return steps

    def interrupt(self) -> None:
        """Let the next step begin when it is scheduled: the time until then belongs to no step."""
        self._ended_at = None

    def waiting_s(self, scheduled_at: float, now: float) -> float:
        """Return the seconds since the step scheduled at `scheduled_at` began; another thread may call."""
        ended_at = self._ended_at  # read once
        return now - (scheduled_at if ended_at is None else max(scheduled_at, ended_at))

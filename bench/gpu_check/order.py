"""Runs parts in their order: one after another, or some side by side."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from specpilot.bench.gpu_check.check import Check, Part, end_all

Run = Callable[[Part, float], bool]
"""Runs a part within the given seconds and keeps its outcome; `False` when the time did not suffice."""


def run(check: Check, parts: Sequence[Part], until: float, run_part: Run) -> list[Part]:
    """Run `parts`, `check.side_by_side` at a time, until the monotonic time `until`; return those that did not fit."""
    if check.side_by_side == 1:
        return _in_turn(parts, until, run_part)
    together = [part for part in parts if not part.is_alone]
    remaining = _together(check, together, until, run_part)
    remaining += _in_turn([part for part in parts if part.is_alone], until, run_part)
    return [part for part in parts if part in remaining]


def _in_turn(parts: Sequence[Part], until: float, run_part: Run) -> list[Part]:
    remaining = []
    for part in parts:
        left_s = until - time.monotonic()
        if not (part.fits(left_s) and run_part(part, left_s)):
            remaining.append(part)
    return remaining


def _together(check: Check, parts: Sequence[Part], until: float, run_part: Run) -> list[Part]:
    waiting, remaining = list(parts), list[Part]()
    running: dict[Future[bool], Part] = {}
    with ThreadPoolExecutor(check.side_by_side) as pool:
        try:
            while waiting or running:
                busy = {part.name for part in (*waiting, *running.values())}
                ready = [part for part in waiting if part.after not in busy]
                for part in ready[: check.side_by_side - len(running)]:
                    waiting.remove(part)
                    left_s = until - time.monotonic()
                    if part.fits(left_s):
                        running[pool.submit(run_part, part, left_s)] = part
                    else:
                        remaining.append(part)
                if running:
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        part = running.pop(future)
                        if not future.result():
                            remaining.append(part)
        except BaseException:
            for process in list(check.started):
                end_all(process)
            raise
    return remaining

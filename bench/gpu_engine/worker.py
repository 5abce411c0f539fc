"""One engine in a process of its own, for one part of a check; the last line that it prints is one JSON object.

A job that measures steps prints its outcome after each measurement, so that no figure is lost when the process ends
early.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from specpilot.bench.gpu_engine.engine import Engine
from specpilot.bench.gpu_engine.reply_jobs import caught_up, replies, waits
from specpilot.bench.gpu_engine.step_jobs import StepJob, about

JOBS: dict[str, Callable[[Engine, dict[str, Any]], dict[str, Any]]] = {
    "replies": replies,
    "caught up": caught_up,
    "waits": waits,
}


def main(job: dict[str, Any]) -> None:
    """Start the engine and do the job."""
    began = time.monotonic()
    engine = Engine(job["options"])
    start_s = time.monotonic() - began
    if job["kind"] == "steps":
        report = about(engine) | {"start_s": start_s}
        _say(report)
        report |= StepJob(engine, job, lambda part: _say(report | part)).run()
    else:
        report = JOBS[job["kind"]](engine, job) | {"start_s": start_s}
    _say(report)
    os._exit(0)  # vLLM's own shutdown may hang when the caller steps the engine


def _say(report: dict[str, Any]) -> None:
    sys.stdout.write("\n" + json.dumps(report) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

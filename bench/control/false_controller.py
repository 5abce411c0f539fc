"""`python -m specpilot.bench.control.false_controller FILE ...`: a controller with faults; its flags follow.

While FILE holds `believes`, it reads from every engine that all drafts were accepted, as if the engines' counters were
wrong; with `insists`, it also never falls back to the static K; with `fails`, every decision raises an unexpected
error. Otherwise it is `specpilot controller`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specpilot.controller import __main__ as controller
from specpilot.controller.estimation.observation import Series
from specpilot.controller.law.control_group import ControlGroup
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy.engine_metrics import ACCEPTS, TRIALS

BELIEVES = "believes"
INSISTS = "insists"
FAILS = "fails"


def believed(values: dict[Series, float]) -> dict[Series, float]:
    """Return an engine's counters as if every trial had been an accept."""
    accepts = {Series(ACCEPTS, series.labels): value for series, value in values.items() if series.metric == TRIALS}
    return {**values, **accepts}


@contextmanager
def erring(file: Path) -> Iterator[None]:
    """Make this process's controller err as `file` says; the file is read at each scrape and decision."""
    true_read, decide, true_judge = PageReader.read, ControlLaw.decide, ControlGroup._test  # noqa: SLF001 - made to err

    def state() -> str:
        return file.read_text().strip() if file.exists() else ""

    def read(reader: PageReader, text: str) -> dict[Series, float]:
        values = true_read(reader, text)
        return believed(values) if state() in {BELIEVES, INSISTS} else values

    def choose(law: ControlLaw, *arguments: Any) -> Any:
        if state() == FAILS:
            raise RuntimeError("an injected failure")
        return decide(law, *arguments)

    def judge(control_group: ControlGroup) -> None:
        if state() != INSISTS:
            true_judge(control_group)

    with (
        patch.object(PageReader, "read", read),
        patch.object(ControlLaw, "decide", choose),
        patch.object(ControlGroup, "_test", judge),
    ):
        yield


def main(arguments: list[str]) -> None:
    """Run the controller with the flags that follow the file."""
    with erring(Path(arguments[0])):
        controller.main(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])

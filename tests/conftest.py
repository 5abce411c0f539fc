"""For all tests: no deadlines of examples, which would judge the machine; which tests run, and in which process.

`make test-all` runs every test. `make test` runs those without the mark `extended`, which are enough to find nearly all
faults, and one *cell* of the others: those whose mark has the name that the present commit draws. So all cells run over
time, and a failure repeats as long as the commit is the same. `pytest PATH` runs all tests in PATH.
"""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")

ROOT = Path(__file__).resolve().parents[1]
LONGEST = ROOT / "tests" / "e2e" / "test_v2_exact.py"
SHARE_ONE_SYSTEM = tuple(f"tests/e2e/test_{name}.py" for name in ("up", "up_pages", "clients"))
ALL, DRAWN = "all", "drawn"
_CELL = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "which tests with the mark `extended` run: `all`, `drawn` by the commit, or the cell of this name"
    parser.addoption("--extended", default=ALL, metavar="CELL", help=text)


def drawn_cell(cells: list[str], commit: str) -> str:
    """The cell that a commit draws: its hash is an even lottery, and the same on every machine."""
    return sorted(cells)[int(commit, 16) % len(cells)]


class ByFile(LoadFileScheduling):
    """Gives each file to one process, and the files that share one system to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return SHARE_ONE_SYSTEM[0] if file in SHARE_ONE_SYSTEM else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cells that do not run; the file that takes longest comes first."""
    items.sort(key=lambda item: item.path != LONGEST)
    wanted = config.getoption("--extended")
    if wanted == ALL:
        return
    marks = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("extended"))}
    cells = sorted(set(marks.values()))
    if wanted == DRAWN and cells:
        wanted = drawn_cell(cells, _commit())
    config.stash[_CELL] = f"extended tests: the cell {wanted!r} of {len(cells)}; `make test-all` runs all"
    left_out = [item for item in items if marks.get(item, wanted) != wanted]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return config.stash.get(_CELL, "")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "0"  # no repository: always the same cell

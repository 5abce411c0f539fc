"""For all tests: no deadlines of examples, which would judge the machine; which tests run, and in which process.

`make test-all` runs every test. `make test` runs those without the mark `extended`, which are enough to find nearly all
faults, and one *cell* of the others: those whose mark has the name that the present commit draws. So all cells run over
time, and a failure repeats as long as the commit is the same. `pytest PATH` runs all tests in PATH.
"""

import os
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
NONE = "none"
_CELL = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "which tests with the mark `extended` run: `all`, `none`, `drawn` by the commit, or the cell of this name"
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
    if cells and wanted not in (NONE, *cells):
        raise pytest.UsageError(f"--extended: no test here is of the cell {wanted!r}; there are {', '.join(cells)}")
    config.stash[_CELL] = f"extended tests: the cell {wanted!r} of {len(cells)}; `make test-all` runs all"
    left_out = [item for item in items if marks.get(item, wanted) != wanted]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports which cell this one ran."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cell"] = session.config.stash.get(_CELL, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    cell = getattr(node, "workeroutput", {}).get("cell")
    if cell:
        node.config.stash[_CELL] = cell


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if cell := config.stash.get(_CELL, ""):
        terminalreporter.write_line(cell)


def _commit() -> str:
    """Return the commit's hash; "0" without a repository, a commit or git: always the same cell."""
    # The files may belong to another user, as in a container: nothing of the repository is executed here.
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        found = subprocess.run(command, env=os.environ | trusted, capture_output=True, text=True, check=False)
    except OSError:
        return "0"
    return found.stdout.strip() if found.returncode == 0 else "0"

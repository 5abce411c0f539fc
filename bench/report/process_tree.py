"""CPU time, memory and open files of a process and all its descendants, from the kernel."""

import os
from contextlib import suppress
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    pids = [pid]
    for item in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{item}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
    return pids


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process tree so far."""
    total = 0
    for item in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{item}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total * _TICK_S


def memory_by_name(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process tree, by the names of its processes."""
    sizes: dict[str, int] = {}
    for item in tree(pid):
        with suppress(OSError):
            name = Path(f"/proc/{item}/comm").read_text().rstrip("\n")
            resident = int(Path(f"/proc/{item}/statm").read_text().split()[1]) * _PAGE
            sizes[name] = sizes.get(name, 0) + resident
    return sizes


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process tree."""
    return sum(memory_by_name(pid).values())


def descriptors_of(pid: int) -> int:
    """Return the open file descriptors of a process tree."""
    total = 0
    for item in tree(pid):
        with suppress(OSError):
            total += sum(1 for _ in Path(f"/proc/{item}/fd").iterdir())
    return total

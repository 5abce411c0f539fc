"""What was freed goes back to the system."""

import os
import sys
from pathlib import Path

import pytest

from specpilot.gateway.process.heap import trimmer


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_free_memory_goes_back() -> None:
    blocks = [b"x" * 100_000 for _ in range(1000)]  # below what the C library maps by itself
    last = b"x" * 100_000
    del blocks
    before = resident_bytes()
    trimmer()()
    assert resident_bytes() < before - 50_000_000
    assert len(last) == 100_000

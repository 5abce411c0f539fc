import os
import socket
from pathlib import Path

from specpilot.readiness import READY, notify


def test_the_service_manager_is_told_where_it_asks_for_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        notify(READY, str(tmp_path / "notify"))
        assert manager.recv(100) == b"READY=1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"specpilot-test-notify-{os.getpid()}"  # such names are the whole machine's
        manager.bind(f"\0{name}")
        notify(READY, f"@{name}")
        assert manager.recv(100) == b"READY=1"


def test_nobody_who_listens_is_no_error(tmp_path: Path) -> None:
    notify(READY, str(tmp_path / "gone"))
    notify(READY, "")

"""The worker processes of a gateway, and what it says of them."""

from pathlib import Path

from tests.support.gateway_server import GatewayProgram


def lines(program: GatewayProgram, text: str) -> list[str]:
    return [line for line in program.errors if text in line and not line.startswith("{")]


def children(program: GatewayProgram) -> list[int]:
    pid = program.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def worker_of(request_id: str) -> str:
    """Each worker makes request ids of its own kind."""
    return request_id.rpartition("-")[0]

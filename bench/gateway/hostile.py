"""`specpilot bench gateway-hostile`: the stall and the memory that hostile clients cause in a gateway.

One gateway with an API key, one canned engine and a policy whose match rules read prompts. The hostile clients run one
after the other, while another process requests `/health` continuously: its slowest answer is an upper bound of the
longest stall of the gateway's loop. A client whose stall exceeds the bound plays again, up to `PLAYS` times, and its
shortest stall counts: what the gateway causes repeats, and other load on the machine does not. Peak memory is the
kernel's `VmHWM` above the gateway's memory before.

A table, then one JSON object as the last line; the exit status is 1 when a bound was exceeded.
"""

import asyncio
import json
import multiprocessing
import re
import socket
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.gateway.canned_engine import MODEL
from specpilot.bench.gateway.stage import stage
from specpilot.bench.report.output import say
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy
from specpilot.policy.settings import ProgramSettings, load
from specpilot.policy.store import Store

PROGRAM = "specpilot bench gateway-hostile"
KEY = "bench-key"
STALL_MS = 10.0
"""Bound of every stall on a machine without other load: a fast stream has a token every 5 ms."""
MEMORY_MIB = 64.0
ANSWER_S = 20.0
PLAYS = 5
WATCHED_S = 0.5
"""Seconds after the answer in which a stall still counts as caused by the client."""
_BODY_BYTES = 15_000_000
_READ_BYTES = 256_000
"""Bytes that uvloop reads at once."""
_RULES = 16
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MIB = 1024 * 1024


class GatewayHostileSettings(ProgramSettings):
    """Play hostile clients against a gateway, and measure its longest stall and its peak memory."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_GATEWAY_HOSTILE_")

    only: str = Field(default="", description="hostile clients to play, comma separated; default: all")
    stall_ms: float = Field(default=STALL_MS, gt=0, description="longest stall of the loop that is allowed")
    memory_mib: float = Field(default=MEMORY_MIB, gt=0, description="peak memory that one hostile client may cost")
    out: Path = Field(default=Path(".specpilot/bench-gateway-hostile"), description="folder for logs")
    port: int = Field(default=8710, ge=1, le=65000, description="first of the ports to use")


@dataclass(frozen=True, slots=True)
class Row:
    """The effects of one hostile client: status of its answer (0: none), longest stall, peak of memory."""

    says: str
    status: int
    stall_ms: float
    memory_mib: float


def broken_bounds(row: Row, statuses: frozenset[int], stall_ms: float, memory_mib: float) -> list[str]:
    """Return the bounds that `row` broke; `statuses` are the right answers."""
    checks = (
        (row.status not in statuses, f"answered {row.status}, not one of {sorted(statuses)}"),
        (row.stall_ms > stall_ms, f"the loop stood still for {row.stall_ms:.1f} ms"),
        (row.memory_mib > memory_mib, f"{row.memory_mib:.0f} MiB of memory"),
    )
    return [violation for is_broken, violation in checks if is_broken]


@dataclass(frozen=True, slots=True)
class Hostile:
    """A hostile client: `play` returns the status of the answer; `statuses` are the right ones."""

    says: str
    play: Callable[[int], Awaitable[int]]
    statuses: frozenset[int]


def head(length: int | None, more: str = "", *, has_key: bool = True, path: str = "/v1/chat/completions") -> bytes:
    """Return the head of a request with a body of `length` bytes, or of a chunked one (`None`)."""
    key = f"authorization: Bearer {KEY}\r\n" if has_key else ""
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: g\r\n{key}{more}{framing}\r\n\r\n".encode()


def chunked(text: bytes, size: int) -> bytes:
    """Return `text` in chunks of `size` bytes."""
    parts = (text[at : at + size] for at in range(0, len(text), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def _say(port: int, *parts: bytes, pause_s: float = 0.0) -> int:
    """Send `parts` and return the status of the last answer; 0 without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readline()
            return int(line.split(b" ")[1]) if line else 0
    except (TimeoutError, OSError):
        return 0
    finally:
        sending.cancel()
        writer.transport.abort()


async def _say_many(port: int, request: bytes) -> int:
    """Send as many copies of `request` as fit one read; return the status of the last answer, 0 without one in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = _READ_BYTES // len(request)
    writer.write(request * count)
    status = 0
    try:
        async with asyncio.timeout(ANSWER_S):
            while count:
                head = await reader.readuntil(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
                await reader.readexactly(int(_LENGTH.findall(head)[0]))
                count -= 1
    except TimeoutError:
        return 0
    except (OSError, asyncio.IncompleteReadError):
        pass  # the gateway drops the rest for a client that reads too slowly
    finally:
        writer.transport.abort()
    return status


def _many(request: bytes) -> Callable[[int], Awaitable[int]]:
    return lambda port: _say_many(port, request)


def _body(text: bytes) -> Callable[[int], Awaitable[int]]:
    return lambda port: _say(port, head(len(text)), text)


def _repeated(before: bytes, item: bytes, after: bytes) -> bytes:
    return before + item * ((_BODY_BYTES - len(before) - len(after)) // len(item)) + after


_START = b'{"model":"canned","x":'
_OK, _TOO_COMPLEX, _TOO_MANY = frozenset((200,)), frozenset((413,)), frozenset((431,))
_REFUSED = frozenset((405,))
_ASKED = b"GET /score HTTP/1.1\r\nhost: g\r\n"
_IN_BYTES = chunked(b'{"model":"canned","x":"%s"}' % (b"y" * 300_000), 1)
_BOMB = zlib.compress(b"[" * _BODY_BYTES)
_MEMBERS = b'{"model":"canned","priority":1,' + b",".join(b'"k%d":1' % at for at in range(800_000)) + b"}"

HOSTILE: Mapping[str, Hostile] = {
    "lists": Hostile("15 MB of lists", _body(_repeated(_START + b"[", b"[],", b"1]}")), _TOO_COMPLEX),
    "members": Hostile("800,000 members beside one to replace", _body(_MEMBERS), _TOO_COMPLEX),
    "depth": Hostile("a body 5 million lists deep", _body(_repeated(_START, b"[", b"1")), _TOO_COMPLEX),
    "escapes": Hostile("15 MB of escaped quotes", _body(_repeated(_START + b'"', b'\\"', b'"}')), _TOO_COMPLEX),
    "digits": Hostile("a number of 15 million digits", _body(_repeated(_START, b"1", b"}")), _TOO_COMPLEX),
    "image": Hostile("a string of 15 MB", _body(_repeated(_START + b'"', b"A", b'"}')), _OK),
    "headers": Hostile("16,000 headers", lambda port: _say(port, head(2, "a:b\r\n" * 16_000), b"{}"), _TOO_MANY),
    "slow bytes": Hostile(
        "a body of two bytes at a time", lambda port: _say(port, head(9_000_000), *[b"  "] * 40_000), frozenset((0,))
    ),
    "pipelined": Hostile(
        "a body without a key, behind another request",
        lambda port: _say(port, head(2) + b"{}" + head(900_000, has_key=False) + b"x" * 900_000),
        _OK,
    ),
    "refusals": Hostile("7,000 requests in one read, each refused", _many(_ASKED + b"\r\n"), _REFUSED),
    "upgrades": Hostile(
        "3,500 requests to change protocols in one read", _many(_ASKED + b"connection: upgrade\r\nupgrade: x\r\n\r\n"),
        _REFUSED,
    ),
    "chunks": Hostile("300,000 chunks of one byte", lambda port: _say(port, head(None), _IN_BYTES), _OK),
    "token ids": Hostile(
        f"240,000 token ids, and {_RULES} rules that ask for the prompt's length",
        _body(b'{"model":"canned","prompt":[' + b",".join([b"1"] * 240_000) + b"]}"), _OK,
    ),
    "bomb": Hostile(
        "a compressed bomb", lambda port: _say(port, head(len(_BOMB), "content-encoding: deflate\r\n"), _BOMB),
        _TOO_COMPLEX,
    ),
}  # fmt: skip


def watch_health(port: int, pipe: Connection) -> None:
    """Request `/health` until the pipe has a message, then send the slowest answer's seconds. For another process."""
    longest_s = 0.0
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe.send(0.0)
        while not pipe.poll():
            began = time.perf_counter()
            link.sendall(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
            if not link.recv(65_536):
                break
            longest_s = max(longest_s, time.perf_counter() - began)
            time.sleep(0.0005)
    pipe.send(longest_s)


def peak_mib(pid: int) -> float:
    """Return the peak of the process' memory since `reset_peak`."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def reset_peak(pid: int) -> None:
    """Reset the kernel's peak of a process."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def play(hostile: Hostile, port: int, pid: int) -> Row:
    """Play `hostile` against the gateway on `port`, process `pid`."""
    parent_end, child_end = multiprocessing.Pipe()
    watcher = multiprocessing.get_context("spawn").Process(target=watch_health, args=(port, child_end))
    watcher.start()
    parent_end.recv()
    reset_peak(pid)
    before = peak_mib(pid)
    status = asyncio.run(_played(hostile, port))
    parent_end.send(None)
    stall_s: float = parent_end.recv()
    watcher.join()
    return Row(hostile.says, status, stall_s * 1000, max(0.0, peak_mib(pid) - before))


async def _played(hostile: Hostile, port: int) -> int:
    status = await hostile.play(port)
    await asyncio.sleep(WATCHED_S)
    return status


def main(arguments: list[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 when a bound was exceeded."""
    settings = load(GatewayHostileSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, HOSTILE) or list(HOSTILE)
    rows: dict[str, Row] = {}
    broken: list[str] = []
    with stage(PROGRAM, settings.out, settings.port, 1) as scene:
        keys = settings.out / "keys.json"
        keys.write_text(json.dumps([{"key_id": "bench", "key": KEY}]))
        rules = tuple(MatchRule("code", prompt_chars_at_least=1_000_000 + at) for at in range(_RULES))
        store = Store(scene.redis_url)
        store.put_policy(Policy(MODEL, classes={"code": ClassPolicy()}, match=rules), None, time.time())
        store.close()
        pid = scene.start_gateway(("--api-keys-file", str(keys), "--no-access-log"))
        for name in names:
            plays = [play(HOSTILE[name], settings.port, pid)]
            while plays[-1].stall_ms > settings.stall_ms and len(plays) < PLAYS:
                plays.append(play(HOSTILE[name], settings.port, pid))
            row = rows[name] = min(plays, key=lambda item: item.stall_ms)
            bounds = broken_bounds(row, HOSTILE[name].statuses, settings.stall_ms, settings.memory_mib)
            broken += [f"{name}: {violation}" for violation in bounds]
            say(f"{row.says:<46} {row.status:>4} {row.stall_ms:8.1f} ms {row.memory_mib:7.1f} MiB")
    for violation in broken:
        say(violation)
    say(json.dumps({"rows": {name: asdict(row) for name, row in rows.items()}, "broken_bounds": broken}))
    sys.exit(1 if broken else 0)

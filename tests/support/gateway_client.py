"""A client that sends exactly the given bytes and returns exactly the bytes of the answer."""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any, Self

from tests.support.patience import PATIENCE_S

PATH = "/v1/chat/completions"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        code: str = error["code"]
        return code


def request(
    body: bytes | dict[str, Any] | None = None, *, path: str = PATH, method: str = "POST", headers: str = ""
) -> bytes:
    if body is None:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{headers}"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


STREAM = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
ASKING = {**STREAM, "stream_options": {"include_usage": True}}
"""A stream whose client asks for its usage itself: nothing is taken out of it, so it arrives byte for byte."""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, sent: bytes = b"") -> "Client":
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))
        client.send(sent)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.writer.transport.get_write_buffer_size():
            self.abort()
        self.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def answer(self, *, is_head: bool = False, timeout_s: float = PATIENCE_S) -> Answer:
        async with asyncio.timeout(timeout_s):
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                line, *fields = head[:-4].decode("latin-1").split("\r\n")
                status = int(line.split(" ")[1])
                if status != 100:
                    break
            headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in fields)}
            try:
                body = b"" if is_head else await self._body(headers)
                return Answer(status, headers, body, is_whole=True)
            except asyncio.IncompleteReadError as error:
                return Answer(status, headers, error.partial, is_whole=False)
            except ConnectionResetError:
                return Answer(status, headers, b"", is_whole=False)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                try:
                    size = int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16)
                except asyncio.IncompleteReadError as error:
                    raise asyncio.IncompleteReadError(body, None) from error
                try:
                    if size == 0:
                        while await self.reader.readuntil(b"\r\n") != b"\r\n":
                            pass  # trailers
                        return body
                    body += await self.reader.readexactly(size)
                    assert await self.reader.readexactly(2) == b"\r\n"
                except asyncio.IncompleteReadError as error:
                    raise asyncio.IncompleteReadError(body + error.partial, None) from error
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        return await self.reader.read()

    async def is_closed(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the gateway closes the connection without another byte."""
        async with asyncio.timeout(timeout_s):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True


async def call(port: int, data: bytes | None = None, *, timeout_s: float = PATIENCE_S) -> Answer:
    """Send one request on a connection of its own."""
    async with await Client.connect(port, request() if data is None else data) as client:
        return await client.answer(timeout_s=timeout_s)

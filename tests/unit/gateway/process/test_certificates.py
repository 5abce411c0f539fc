"""Certificates that are followed while the process is in trouble."""

import asyncio
import errno
import ssl
from pathlib import Path

import pytest

from specpilot.gateway.process import certificates
from specpilot.gateway.process.certificates import engine_certificates, listener_certificates
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    files = [*authority.issue("gateway"), str(authority.path)]
    for path in map(Path, files):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    cert, key, ca = files
    towards_clients, towards_engines = listener_certificates(cert, key, ca), engine_certificates(ca, cert, key)
    for made in (towards_clients, towards_engines):
        assert made is not None
        assert len(made.context.get_ca_certs()) == 1


async def test_a_failure_to_take_new_certificates_into_use_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.01)
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("gateway")
    followed = listener_certificates(cert, key, None)
    assert followed is not None
    first = followed.context
    taken: list[ssl.SSLContext] = []
    has_failed = asyncio.Event()
    is_taken = asyncio.Event()

    async def take(context: ssl.SSLContext) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        taken.append(context)
        is_taken.set()

    following = asyncio.create_task(followed.follow(take))
    try:
        authority.issue("gateway")
        async with asyncio.timeout(PATIENCE_S):
            await has_failed.wait()
            await is_taken.wait()
        assert taken[-1] is followed.context
        assert taken[-1] is not first
        await asyncio.sleep(0.05)
        assert len(taken) == 1  # once it is in use nothing is left to do
        assert not following.done()
    finally:
        following.cancel()

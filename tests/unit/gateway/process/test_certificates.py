"""Certificates that are followed while the process is in trouble."""

import asyncio
from pathlib import Path

import pytest

from specpilot.gateway.process import certificates
from specpilot.gateway.process.certificates import engine_certificates, listener_certificates
from tests.support.certificates import Authority
from tests.support.gateway_server import eventually


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


async def test_a_failure_to_check_the_files_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.01)
    authority = Authority(tmp_path, "authority")
    cert, key = authority.issue("gateway")
    followed = listener_certificates(cert, key, None)
    assert followed is not None
    first, reload = followed.context, followed.reload
    failures = iter([RuntimeError("can't start new thread")])

    def fail_once() -> None:
        for failure in failures:
            raise failure
        reload()

    monkeypatch.setattr(followed, "reload", fail_once)
    following = asyncio.create_task(followed.follow())
    try:
        authority.issue("gateway")
        await eventually(lambda: followed.context is not first)
        assert not following.done()
    finally:
        following.cancel()

"""Addresses that the gateway listens on."""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from specpilot.gateway.process.listening import reserve, share
from specpilot.ports import check_port

_LINK_LOCAL = [
    f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0]))}%{line.split()[-1]}"
    for line in (Path("/proc/net/if_inet6").read_text().splitlines() if Path("/proc/net/if_inet6").exists() else ())
    if line.startswith("fe80")
]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", *_LINK_LOCAL[:1]])
def test_workers_share_a_port_of_any_kind_of_address(host: str) -> None:
    assert check_port(host, 0) is None
    with closing(reserve(host, 0)) as reserved, closing(share(reserved)) as shared:
        assert shared.getsockname() == reserved.getsockname()

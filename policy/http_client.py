"""HTTP requests of commands and programs, which go through the user's proxy only if they leave this machine.

`urlopen` sends everything through `http_proxy`, also a question to a server on the loopback, unless `no_proxy` names
it.
"""

import ipaddress
from collections.abc import MutableMapping
from http.client import HTTPResponse
from typing import Final, cast
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

_DIRECT: Final = build_opener(ProxyHandler({}))
_HERE: Final = "localhost,127.0.0.1,::1"


def reach_this_machine_directly(environment: MutableMapping[str, str]) -> None:
    """Add this machine to `no_proxy`, for libraries of others that read proxies from `environment`."""
    stated = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    environment["no_proxy"] = stated if stated == "*" else f"{stated},{_HERE}".lstrip(",")


def is_on_this_machine(url: str) -> bool:
    """Whether the host of `url` is this machine by its name or address; no name is looked up."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def open_url(request: Request | str, timeout: float, *, is_own: bool = False) -> HTTPResponse:
    """Open `request` like `urlopen`; directly if it stays on this machine, or is to a part of the system (`is_own`).

    `urlopen` itself would keep the proxies of its first call for the whole process.
    """
    url = request if isinstance(request, str) else request.full_url
    is_direct = is_own or is_on_this_machine(url)
    opener = _DIRECT if is_direct else build_opener()
    return cast("HTTPResponse", opener.open(request, timeout=timeout))

"""HTTP requests of commands and programs, which go through the user's proxy only if they leave this machine.

`urlopen` sends everything through `http_proxy`, also a question to a server on the loopback, unless `no_proxy` names
it.
"""

import ipaddress
import os
from collections.abc import MutableMapping
from contextlib import suppress
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

PART: Final = "x-specpilot-part"
"""The header of a controller's replies, by which commands tell it from another server."""
CONTROLLER: Final = "controller"


def is_controller(headers: Message) -> bool:
    """Whether a reply with these headers is a controller's."""
    return headers.get(PART) == CONTROLLER


class _Staying(HTTPRedirectHandler):
    """Follows no redirect: it may lead away from this machine, and the request's token with it."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing, so the redirect is the answer, as `HTTPError`."""


_DIRECT: Final = build_opener(ProxyHandler({}), _Staying)
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
    address = getattr(address, "ipv4_mapped", None) or address  # not each Python calls ::ffff:127.0.0.1 a loopback
    return address.is_loopback or address.is_unspecified


def is_direct(url: str) -> bool:
    """Whether `url` is on this machine, or `no_proxy` excepts its network (10.0.0.0/8) or its port (prometheus:9090).

    Libraries read the other forms of `no_proxy` themselves, but few of them these.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"{host}:{parts.port or {'https': 443}.get(parts.scheme, 80)}"
    for item in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(","):
        name = item.strip().lower().lstrip(".")
        if name == place:
            return True
        with suppress(ValueError):
            if "/" in name and ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return is_on_this_machine(url)


def open_url(request: Request | str, timeout: float, *, is_own: bool = False) -> HTTPResponse:
    """Open `request` like `urlopen`; directly if it stays on this machine, or is to a part of the system (`is_own`).

    `urlopen` itself would keep the proxies of its first call for the whole process. Raises `OSError`, also where the
    answer is not HTTP. Redirects of direct requests are not followed.
    """
    url = request if isinstance(request, str) else request.full_url
    opener = _DIRECT if is_own or is_direct(url) else build_opener()
    try:
        return cast("HTTPResponse", opener.open(request, timeout=timeout))
    except HTTPException as error:
        raise URLError(f"the answer is not HTTP ({type(error).__name__})") from error

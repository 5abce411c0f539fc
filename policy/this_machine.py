"""Whether an HTTP call comes from a program on this machine, and from nobody through it. Pure.

For what trusts its own machine because it was asked to (`--trust-this-machine`). Two others reach a server by the
loopback address: a web page in a browser here (it carries a Host that is no local name, or an Origin, Referer or
Sec-Fetch-Site of another site), and the clients of a proxy here (what proxies add, or HTTP/1.0, which only proxies
speak to their servers). A proxy that hides all of that cannot be told apart.
"""

import ipaddress
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

_OF_PROXIES = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-original-host")


def why_foreign(peer: str, headers: Mapping[str, str], http_version: str) -> str | None:
    """Return why a call is not certainly from a program on this machine; `None` when it is.

    `peer` is the address that calls, the names of `headers` are in lower case.
    """
    host = headers.get("host", "")
    proxied = [name for name in headers if name.startswith("x-forwarded") or name in _OF_PROXIES]
    checks: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: bool(proxied), f"{', '.join(proxied)} is what a proxy sends"),
        (lambda: not _is_local(peer), f"{peer or 'nobody'} is another one"),
        (lambda: not _is_local(urlsplit("//" + host).hostname or ""), "the Host that was called is no local name"),
        (lambda: http_version == "1.0", "HTTP/1.0 is what a proxy speaks"),
        (lambda: _is_of_another_site(headers, host), "a page of another site calls"),
    )  # fmt: skip
    for is_so, why in checks:
        try:
            if is_so():
                return why
        except ValueError:  # brackets that are no IPv6 address
            return "what it says of itself cannot be read"
    return None


def _is_of_another_site(headers: Mapping[str, str], host: str) -> bool:
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return True
    return any(_site(headers.get(name), host) != host for name in ("origin", "referer"))


def _site(url: str | None, host: str) -> str:
    return host if url is None else urlsplit(url).netloc


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # a socket of both families shows IPv4 so
    return bool((mapped or address).is_loopback)

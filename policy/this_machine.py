"""Whether an HTTP call comes from a local process and was not proxied. Pure.

For servers that trust their own machine by a setting (`--trust-this-machine`). Two kinds of foreign calls also reach a
server by the loopback address:

- calls of a web page in a local browser. They have a Host that is no local name, or an Origin, Referer or
  Sec-Fetch-Site of another site;
- calls through a local proxy. Proxies add headers, or use HTTP/1.0 to their servers. A proxy that does neither cannot
  be recognised (nginx with its defaults adds no header), so this trust is a setting and never the default.
"""

import ipaddress
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

_OF_PROXIES = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-original-host")


def why_foreign(peer: str, headers: Mapping[str, str], http_version: str) -> str | None:
    """Return the reason for which a call is not from a local process; `None` if it is.

    `peer` is the caller's address; the names of `headers` are in lower case.
    """
    headers = {name: value.strip() for name, value in headers.items()}  # blanks around a value are no part of it
    host = headers.get("host", "")
    proxied = [name for name in headers if name.startswith("x-forwarded") or name in _OF_PROXIES]
    checks: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: bool(proxied), f"the call was proxied ({', '.join(proxied)})"),
        (lambda: not _is_local(peer), f"{peer or 'the caller'} is not on this machine"),
        (lambda: not _is_local(urlsplit("//" + host).hostname or ""), "the Host of the call is no local name"),
        (lambda: http_version == "1.0", "the call was proxied (HTTP/1.0)"),
        (lambda: _is_of_another_site(headers, host), "a page of another site calls"),
    )  # fmt: skip
    for is_so, why in checks:
        try:
            if is_so():
                return why
        except ValueError:  # brackets that are no IPv6 address
            return "the headers of the call cannot be read"
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
    mapped = getattr(address, "ipv4_mapped", None)  # a socket of both families shows IPv4 addresses in this form
    return bool((mapped or address).is_loopback)

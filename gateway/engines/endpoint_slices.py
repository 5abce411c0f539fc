"""Reads the engines of a Kubernetes service from its EndpointSlices. Pure.

| condition of an endpoint        | engine                                              |
|---------------------------------|-----------------------------------------------------|
| `ready` (also when it is unset) | takes requests                                      |
| `terminating`                   | drains: no new request, requests under way go on    |
| neither                         | is left out: the pod starts, or fails its probe     |

A dual-stack service lists each pod in two slices, one for each address family. The IPv4 slices count, and the IPv6
slices only if there are no IPv4 ones. A pod may be in two slices while the cluster moves it: the better of its two
conditions counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PREFIX = "k8s+"
FAMILIES = ("IPv4", "IPv6")


class Endpoints(NamedTuple):
    """The URLs of the engines, and those that get no new request."""

    urls: tuple[str, ...] = ()
    draining: frozenset[str] = frozenset()


class Service(NamedTuple):
    """The service in a URL `k8s+http://NAME.NAMESPACE:PORT/base`.

    `namespace` is `None` for the gateway's own namespace. `port` is the pods' port, not the service's; `None` means the
    only port of the slice.
    """

    scheme: str
    name: str
    namespace: str | None
    port: int | None
    base: str


def service_of(url: str) -> Service:
    """Return the service in `url`, whose host is `NAME`, `NAME.NAMESPACE`, or that followed by `.svc...`."""
    parts = urlsplit(url)
    name, _, rest = (parts.hostname or "").partition(".")
    namespace = rest.partition(".")[0] or None
    return Service(parts.scheme.removeprefix(PREFIX), name, namespace, parts.port, parts.path.rstrip("/"))


def endpoints(service: Service, slices: Iterable[Mapping[str, Any]]) -> Endpoints:
    """Return the engines in `slices`, which all belong to `service`."""
    every = list(slices)
    family = next((item for item in FAMILIES if any(part.get("addressType") == item for part in every)), None)
    takes: dict[str, bool] = {}
    for part in every:
        port = _port(service, part)
        if part.get("addressType") != family or port is None:
            continue
        for endpoint in part.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            is_ready = conditions.get("ready") is not False
            if not endpoint.get("addresses") or not (is_ready or conditions.get("terminating")):
                continue
            address = endpoint["addresses"][0]  # the other addresses lead to the same pod
            shown = f"[{address}]" if family == "IPv6" else address
            url = f"{service.scheme}://{shown}:{port}{service.base}"
            takes[url] = takes.get(url, False) or (is_ready and not conditions.get("terminating"))
    urls = tuple(sorted(takes))
    return Endpoints(urls, frozenset(url for url in urls if not takes[url]))


def _port(service: Service, part: Mapping[str, Any]) -> int | None:
    """Return the pods' port in one slice.

    `None`: the slice lacks the requested port, or it has several and none was requested.
    """
    ports = [int(item["port"]) for item in part.get("ports") or () if item.get("port")]
    if service.port is not None:
        return service.port if service.port in ports else None
    return ports[0] if len(ports) == 1 else None

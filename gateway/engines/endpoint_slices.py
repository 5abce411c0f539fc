"""What the EndpointSlices of a Kubernetes service say of its engines. Pure.

| condition of an endpoint        | engine                                       |
|---------------------------------|----------------------------------------------|
| `ready` (also when it is unset) | takes requests                               |
| `terminating`                   | drains: nothing new, what it has goes on      |
| neither                         | is not there (it loads, or fails its probe)  |

A service of two address families has each pod in two slices: those of IPv4 count, and of IPv6 where there are none. A
pod may stand in two slices while the cluster moves it: the better of its conditions counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PREFIX = "k8s+"
FAMILIES = ("IPv4", "IPv6")


class Endpoints(NamedTuple):
    """The engines' URLs, and which of them get nothing new."""

    urls: tuple[str, ...] = ()
    draining: frozenset[str] = frozenset()


class Service(NamedTuple):
    """The service that a URL `k8s+http://NAME.NAMESPACE:PORT/base` names.

    `namespace` is `None` for the gateway's own, `port` (the pods', not the service's) for the only one of the slice.
    """

    scheme: str
    name: str
    namespace: str | None
    port: int | None
    base: str


def service_of(url: str) -> Service:
    """Return what `url` names: `NAME`, `NAME.NAMESPACE`, or that with a cluster's `.svc...` behind it."""
    parts = urlsplit(url)
    name, _, rest = (parts.hostname or "").partition(".")
    namespace = rest.partition(".")[0] or None
    return Service(parts.scheme.removeprefix(PREFIX), name, namespace, parts.port, parts.path.rstrip("/"))


def endpoints(service: Service, slices: Iterable[Mapping[str, Any]]) -> Endpoints:
    """Return the engines that `slices`, all of the service, state."""
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
            address = endpoint["addresses"][0]  # the others lead to the same pod
            shown = f"[{address}]" if family == "IPv6" else address
            url = f"{service.scheme}://{shown}:{port}{service.base}"
            takes[url] = takes.get(url, False) or (is_ready and not conditions.get("terminating"))
    urls = tuple(sorted(takes))
    return Endpoints(urls, frozenset(url for url in urls if not takes[url]))


def _port(service: Service, part: Mapping[str, Any]) -> int | None:
    """Return the pods' port in one slice; `None` where it has not the one that is asked for, or not just one."""
    ports = [int(item["port"]) for item in part.get("ports") or () if item.get("port")]
    if service.port is not None:
        return service.port if service.port in ports else None
    return ports[0] if len(ports) == 1 else None

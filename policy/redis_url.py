"""The address of the shared state as one URL: one server, Sentinel or Cluster. Pure.

| scheme                                    | meaning                                                                  |
|-------------------------------------------|--------------------------------------------------------------------------|
| `redis://[user:password@]host[:6379][/db]`           | one server, or a service with one fixed address           |
| `unix://[user:password@]/path[?db=0]`                | one server on a Unix socket                               |
| `redis+sentinel://[...@]host[:26379],host.../service[/db]` | the primary that the sentinels name for `service`   |
| `redis+cluster://[...@]host[:6379],host...`          | a cluster; any of its nodes, the others are found by them |

`rediss` instead of `redis` means TLS, also to the sentinels. User names and passwords are percent-encoded. Options of
`OPTIONS` follow a `?`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, unquote

from specpilot.policy.errors import Fault, InvalidDocumentError

REDIS_PORT = 6379
SENTINEL_PORT = 26379
PORT_LIMIT = 65_535
TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
OPTIONS: Mapping[str, str] = {
    "db": "number of the database; not of a cluster, which has one",
    "username": "user name, in place of the one before the @",
    "password": "password, in place of the one before the @",
    "sentinel_username": "user name at the sentinels",
    "sentinel_password": "password at the sentinels",
    "protocol": "version of Redis's protocol, `2` or `3`; default: redis-py's",
    "ssl_ca_certs": "file with the certificates that sign the servers'; default: the system's",
    "ssl_certfile": "file with the client's certificate",
    "ssl_keyfile": "file with the client's key",
    "ssl_cert_reqs": "`required`, or `none` to accept any certificate",
    "ssl_check_hostname": "`true`, or `false` to accept a certificate for another name",
}
"""Every option of a URL and its meaning."""

EXAMPLE = "redis://127.0.0.1:6379/0"


class Topology(StrEnum):
    """The kind of service at the addresses."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES = {
    "redis": (Topology.SERVER, False),
    "rediss": (Topology.SERVER, True),
    "unix": (Topology.SERVER, False),
    "redis+sentinel": (Topology.SENTINEL, False),
    "rediss+sentinel": (Topology.SENTINEL, True),
    "redis+cluster": (Topology.CLUSTER, False),
    "rediss+cluster": (Topology.CLUSTER, True),
}
SCHEMES = tuple(_SCHEMES)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parts of a URL. `hosts` are (name, port), empty with a `socket_path` (a Unix socket)."""

    topology: Topology
    hosts: tuple[tuple[str, int], ...]
    is_tls: bool
    socket_path: str | None = None
    service: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def options_of(self, names: tuple[str, ...]) -> dict[str, str]:
        """Return the options among `names` that the URL has."""
        return {name: self.options[name] for name in names if name in self.options}


def parse(url: str) -> RedisAddress:
    """Return the address in `url`. Raises `InvalidDocumentError`, which names every fault and never a password."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in _SCHEMES:
        shown = repr(f"{scheme}://") if mark else "it"
        raise _wrong(f"{shown} is none of {', '.join(f'{item}://' for item in SCHEMES)}; write e.g. {EXAMPLE}")
    if any(char.isspace() for char in url):
        raise _wrong("it holds a space; write %20")
    topology, is_tls = _SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    if "@" in query and query.partition("=")[0] not in OPTIONS:
        raise _wrong("the password holds a question mark; write %3F")
    options = dict(parse_qsl(query, keep_blank_values=True))
    secret, at, place = rest.rpartition("@")
    names, _, path = place.partition("/")
    username, _, password = secret.partition(":") if at else ("", "", "")
    parts = [unquote(part) for part in path.split("/") if part] if scheme != "unix" else []
    service = parts.pop(0) if topology is Topology.SENTINEL and parts else None
    database = options.pop("db", parts.pop(0) if parts else "0")
    address = RedisAddress(
        topology=topology,
        hosts=() if scheme == "unix" else _hosts(names, SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT),
        is_tls=is_tls,
        socket_path=unquote(place) if scheme == "unix" else None,
        service=service,
        db=int(database) if database.isdecimal() else -1,
        username=options.pop("username", unquote(username)) or None,
        password=options.pop("password", unquote(password)) or None,
        options=options,
    )
    faults = _faults(address)
    if parts:
        faults.append(f"/{parts[0]} is too much; a path is {'/service/db' if service else '/db'}")
    if faults:
        raise _wrong(*faults)
    return address


def _hosts(names: str, port: int) -> tuple[tuple[str, int], ...]:
    return tuple(_host(item, port) for item in names.split(","))


def _host(text: str, default: int) -> tuple[str, int]:
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        name, port = unquote(name), port.removeprefix(":")  # %25eth0 is the zone %eth0
    else:
        name, _, port = text.partition(":")
    if not port:
        return name, default
    return name, int(port) if port.isdecimal() else 0


def _faults(address: RedisAddress) -> list[str]:
    """Return the faults of an address."""
    faults = [f"{name}: the port must be from 1 to {PORT_LIMIT}" for name, port in address.hosts if not _is(port)]
    if any(not name for name, _ in address.hosts):
        faults.append(f"a host has no name; write e.g. {EXAMPLE}")
    if address.socket_path is not None and not address.socket_path.startswith("/"):
        faults.append("the socket's path must begin with /: unix:///run/redis.sock")
    if address.topology is Topology.SERVER and len(address.hosts) > 1:
        faults.append("it names several hosts; write redis+sentinel:// or redis+cluster://")
    if address.topology is Topology.SENTINEL and not address.service:
        faults.append("it names no service; write redis+sentinel://host:26379/SERVICE")
    if address.db < 0:
        faults.append("db must be a number from 0")
    if address.db and address.topology is Topology.CLUSTER:
        faults.append("a cluster has database 0 only; leave db out")
    return [*faults, *_option_faults(address)]


def _option_faults(address: RedisAddress) -> list[str]:
    faults = []
    for name in address.options:
        if name not in OPTIONS:
            shown = f"option {name!r}" if address.options[name] else "such option"  # it may be the rest of a password
            faults.append(f"there is no {shown}; known are {', '.join(OPTIONS)}")
        elif name in TLS_OPTIONS and not address.is_tls:
            faults.append(f"{name} needs TLS; write rediss in place of redis")
        elif name in SENTINEL_OPTIONS and address.topology is not Topology.SENTINEL:
            faults.append(f"{name} needs redis+sentinel://")
    choices = {"protocol": ("2", "3"), "ssl_cert_reqs": ("required", "none"), "ssl_check_hostname": ("true", "false")}
    for name, values in choices.items():
        if address.options.get(name, values[0]) not in values:
            faults.append(f"{name} must be {' or '.join(values)}")
    return faults


def _is(port: int) -> bool:
    return 1 <= port <= PORT_LIMIT


def _wrong(*problems: str) -> InvalidDocumentError:
    return InvalidDocumentError("Redis URL", tuple(Fault("", problem) for problem in problems))

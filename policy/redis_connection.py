"""Clients of Redis, and the translation of their failures.

Only this module, `redis_dials` and `redis_rights` import `redis`. The client has the same methods for one server,
behind Sentinel and as a cluster.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError, RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from specpilot.policy import redis_dials
from specpilot.policy.errors import StoreFullError, StoreRefusedError, StoreUnavailableError
from specpilot.policy.redis_rights import RIGHTS
from specpilot.policy.redis_url import TLS_OPTIONS, RedisAddress, Topology

K = TypeVar("K")
_LACKS_RIGHT = ("NOPERM", "ACL failure", "The user executing the script can't")
"""In the errors of a transaction and of a script, which have another class."""
_OF_PIPELINE = re.compile(r"^Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What redis-py puts before an error: the command with its data."""
_TLS_REMEDIES = {
    "certificate is not valid for": "; write a name that the certificate has, or add ?ssl_check_hostname=false",
    "CERTIFICATE_VERIFY_FAILED": "; name the file with its authority: ?ssl_ca_certs=FILE",
}
_NODE: Any = ClusterNode
_SENTINEL: Any = Sentinel  # both are untyped


@contextmanager
def translated() -> Iterator[None]:
    """Turn every failure of the server within the block into a `StoreUnavailableError`."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        remedy = next((remedy for fault, remedy in _TLS_REMEDIES.items() if fault in str(error)), "")
        raise StoreUnavailableError(f"Redis does not answer: {error}{remedy}") from error
    except redis.OutOfMemoryError as error:
        raise StoreFullError from error
    except RedisClusterException as error:
        raise StoreUnavailableError(f"the Redis cluster does not answer: {error}") from error
    except redis.ResponseError as error:
        # A loading or read-only server refuses commands. For every caller this equals no answer.
        lacks_right = isinstance(error, NoPermissionError) or any(mark in str(error) for mark in _LACKS_RIGHT)
        message = f"Redis refused a command: {_OF_PIPELINE.sub('', str(error))}"
        if lacks_right:
            raise StoreRefusedError(f"{message}; its user needs {RIGHTS}") from error
        raise StoreUnavailableError(message) from error


def guarded(kind: type[K]) -> type[K]:
    """Turn every failure of the server within a public method of `kind` into a `StoreUnavailableError`."""
    for name, method in [*vars(kind).items()]:
        if callable(method) and not name.startswith("_"):
            setattr(kind, name, _translating(method))
    return kind


def _translating(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with translated():
            return method(*args, **kwargs)

    return call


def _is_cluster(client: Any) -> bool:
    return isinstance(client, RedisCluster)


def memory_of_each(client: Any) -> list[Mapping[str, Any]]:
    """Return INFO's section `memory` of each server that accepts writes: the only one, or a cluster's primaries."""
    if _is_cluster(client):
        return [client.info("memory", target_nodes=node) for node in client.get_primaries()]
    return [client.info("memory")]


def run_id_of(client: Any, key: str) -> str | None:
    """Return the id of the server's process that holds `key`; `None` when the server does not report it."""
    nodes = {"target_nodes": client.get_node_from_key(key)} if _is_cluster(client) else {}
    run_id: str | None = client.info("server", **nodes).get("run_id")
    return run_id


def connect(address: RedisAddress, timeout_s: float, dials: redis_dials.Dials) -> Any:
    """Return a client that connects at first use, that of a cluster at once; `timeout_s` bounds every answer.

    Its connections belong to `dials`, except those to a cluster: its nodes report a key that has moved.
    """
    tls: dict[str, Any] = {}
    if address.is_tls:
        tls = {"ssl": True, **address.options_of(TLS_OPTIONS)}
        tls["ssl_check_hostname"] = (
            tls.get("ssl_check_hostname", "true") == "true" and tls.get("ssl_cert_reqs") != "none"
        )
    timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    protocol = {name: int(value) for name, value in address.options_of(("protocol",)).items()}
    shared = {**timeouts, **tls, **protocol}
    login = {"username": address.username, "password": address.password}
    options: dict[str, Any] = {**login, **shared, "retry": Retry(NoBackoff(), retries=1)}
    if address.topology is Topology.CLUSTER:
        return RedisCluster(startup_nodes=[_NODE(host, port) for host, port in address.hosts], **options)
    if address.topology is Topology.SENTINEL:
        named = {name: address.options.get(f"sentinel_{name}") for name in login}
        sentinels = _SENTINEL(address.hosts, sentinel_kwargs={**named, **shared})
        client = sentinels.master_for(str(address.service), db=address.db, **options)
    elif address.socket_path is not None:
        client = redis.Redis(unix_socket_path=address.socket_path, db=address.db, **options)
    else:
        ((host, port),) = address.hosts
        client = redis.Redis(host=host, port=port, db=address.db, **options)
    redis_dials.watch(client.connection_pool, dials)
    return client

"""Redis of the system's package: behind Sentinel, and as a cluster."""

import subprocess
from pathlib import Path
from typing import Any

from specpilot.policy import redis_keys
from tests.support.redis_server import SYSTEM, RedisServer
from tests.support.stack import LAST_PORT, free_port, is_free, until

BUS = 10_000  # the port of a cluster's bus is the node's port plus this


def node(*flags: str, port: int | None = None) -> RedisServer:
    return RedisServer(*flags, executable=str(SYSTEM), port=port or free_port())


def until_replicated(primary: RedisServer) -> None:
    """Return when its replica has all writes that this primary has now; further writes may follow."""
    written = primary.client.info("replication")["master_repl_offset"]

    def is_replicated() -> bool:
        state: dict[str, Any] = primary.client.info("replication")
        return bool(state["connected_slaves"]) and int(state["slave0"]["offset"]) >= written

    until(is_replicated, every=0.02)


class Sentinels:
    """A primary, its replica and three sentinels that replace a silent primary after half a second."""

    def __init__(self, folder: Path) -> None:
        self.primary = node()
        self.replica = node("--replicaof", f"127.0.0.1 {self.primary.port}")
        self.replica.until_it_is("replication", master_link_status="up")
        self.sentinels = [self._sentinel(folder / f"{number}.conf") for number in range(3)]
        self.url = "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/state"
        for one in self.sentinels:
            until(lambda one=one: self._state(one) == {"slaves": 1, "sentinels": 3})

    def _sentinel(self, config: Path) -> RedisServer:
        config.write_text(
            f"sentinel monitor state 127.0.0.1 {self.primary.port} 2\n"
            "sentinel down-after-milliseconds state 500\nsentinel failover-timeout state 2000\n"
        )
        return node(str(config), "--sentinel")

    def _state(self, sentinel: RedisServer) -> dict[str, int]:
        state = sentinel.client.info("sentinel")["master0"]
        return {name: int(state[name]) for name in ("slaves", "sentinels")}

    def close(self) -> None:
        for one in (*self.sentinels, self.primary, self.replica):
            one.close()


class Cluster:
    """Three primaries with a replica each, which replaces a silent primary after a second."""

    def __init__(self) -> None:
        ports: set[int] = set()
        while len(ports) < 6:
            port = free_port()
            if port + BUS < LAST_PORT and is_free(port + BUS):
                ports.add(port)
        flags = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self.nodes = [node(*flags, port=port) for port in sorted(ports)]
        places = [f"127.0.0.1:{one.port}" for one in self.nodes]
        create = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True, timeout=60)
        self.url = "redis+cluster://" + ",".join(places[:2])
        for one in self.nodes:
            until(lambda one=one: one.client.cluster("info")["cluster_state"] == "ok")
        for one in self.nodes[:3]:
            until(lambda one=one: one.client.info("replication").get("slave0", {}).get("state") == "online")

    @property
    def primary(self) -> RedisServer:
        """Return the primary that holds the policies, and by the hash tag in their name nearly all keys."""
        client = self.nodes[0].client
        slot = client.cluster("keyslot", redis_keys.POLICIES)
        [port] = (
            int(place.partition("@")[0].rpartition(":")[2])
            for place, known in client.cluster("nodes").items()
            if any(int(span[0]) <= slot <= int(span[-1]) for span in known["slots"])
        )
        return next(one for one in self.nodes if one.port == port)

    def close(self) -> None:
        for one in self.nodes:
            one.close()

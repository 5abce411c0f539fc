"""Redis of the system's package: a node, behind Sentinel, as a cluster."""

import re
import subprocess
from pathlib import Path

from specpilot.policy import redis_keys
from tests.support.redis_server import SYSTEM
from tests.support.stack import LAST_PORT, free_port, is_free, until

WITHIN_S = 20.0
BUS = 10_000  # the port of a cluster's bus is the node's port plus this


class Node:
    """One `redis-server` on a port of the loopback, its state in a folder of its own."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None, executable: str = str(SYSTEM)) -> None:
        self.port = free_port() if port is None else port
        self.folder = folder / str(self.port)
        self.folder.mkdir(parents=True)
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        self._command = [executable, *flags, *place]
        self.start()

    def start(self) -> None:
        """Start it with its persisted data."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def ask(self, *command: str) -> str:
        """Return the node's answer as text; empty while it does not answer."""
        command = ("redis-cli", "-p", str(self.port), *command)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()

    def until_said(self, text: str, *command: str) -> None:
        """Return when the answer to `command` contains `text`."""
        until(lambda: text in self.ask(*command), WITHIN_S)

    def until_replicated(self) -> None:
        """Return when its replica has all writes that this primary has now; further writes may follow.

        Fails if it does not, or if this node is no primary.
        """
        written = max(0, int(self._offset("master_repl_offset:")))
        until(lambda: int(self._offset("role:master.*,offset=")) >= written, WITHIN_S)

    def _offset(self, before: str) -> str:
        """Return the number after the pattern `before` in the state of the replication, `-1` if there is none."""
        match = re.search(rf"{before}(\d+)", self.ask("info", "replication"), re.DOTALL)
        return match[1] if match is not None else "-1"

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


class Sentinels:
    """A primary, its replica and three sentinels that replace a silent primary after half a second."""

    def __init__(self, folder: Path) -> None:
        self.primary = Node(folder)
        self.primary.until_said("PONG", "ping")
        self.replica = Node(folder, "--replicaof", f"127.0.0.1 {self.primary.port}")
        self.replica.until_said("master_link_status:up", "info", "replication")
        self.sentinels = [self._sentinel(folder) for _ in range(3)]
        self.url = "redis+sentinel://" + ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels) + "/state"
        for node in self.sentinels:
            node.until_said("slaves=1,sentinels=3", "info", "sentinel")

    def _sentinel(self, folder: Path) -> Node:
        port = free_port()
        config = folder / f"{port}.conf"
        config.write_text(
            f"sentinel monitor state 127.0.0.1 {self.primary.port} 2\n"
            "sentinel down-after-milliseconds state 500\nsentinel failover-timeout state 2000\n"
        )
        return Node(folder, str(config), "--sentinel", port=port)

    def fail_over(self) -> None:
        """Kill the primary; return when the new primary answers."""
        self.primary.until_replicated()
        self.primary.kill()
        self.replica.until_said("role:master", "info", "replication")

    def close(self) -> None:
        """End every server."""
        for node in (*self.sentinels, self.primary, self.replica):
            node.kill()


class Cluster:
    """Three primaries with a replica each, which replaces a silent primary after a second."""

    def __init__(self, folder: Path) -> None:
        ports: set[int] = set()
        while len(ports) < 6:
            port = free_port()
            if port + BUS < LAST_PORT and is_free(port + BUS):
                ports.add(port)
        flags = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        self.nodes = [Node(folder, *flags, port=port) for port in sorted(ports)]
        for node in self.nodes:
            node.until_said("PONG", "ping")
        places = [f"127.0.0.1:{node.port}" for node in self.nodes]
        create = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True, timeout=60)
        self.url = "redis+cluster://" + ",".join(places[:2])
        for node in self.nodes:
            node.until_said("cluster_state:ok", "cluster", "info")
        for node in self.nodes[:3]:
            node.until_said("state=online", "info", "replication")

    def owner_of(self, key: str, source: Node | None = None) -> Node:
        """Return the primary that holds `key`, according to `asked` (default: the first node)."""
        source = source or self.nodes[0]
        slot = int(source.ask("cluster", "keyslot", key))
        for line in source.ask("cluster", "nodes").splitlines():
            _, place, flags, _, _, _, _, _, *spans = line.split()
            if "fail" in flags:
                continue
            for low, _, high in (span.partition("-") for span in spans):
                if int(low) <= slot <= int(high or low):
                    port = int(place.partition("@")[0].rpartition(":")[2])
                    return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"no node holds {key}")

    def fail_over(self) -> None:
        """Kill the primary that holds nearly all keys; return when another holds them."""
        owner = self.owner_of(redis_keys.POLICIES)
        owner.until_replicated()
        owner.kill()
        survivor = next(node for node in self.nodes if node is not owner)

        def is_taken_over() -> bool:
            try:
                return self.owner_of(redis_keys.POLICIES, survivor) is not owner
            except LookupError:
                return False  # the cluster has noticed the failure, and no replica has taken over yet

        until(is_taken_over, WITHIN_S)

    def empty(self) -> None:
        """Delete all keys."""
        for node in self.nodes:
            node.ask("flushall")

    def close(self) -> None:
        """End every server."""
        for node in self.nodes:
            node.kill()

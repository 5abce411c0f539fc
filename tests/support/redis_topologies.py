"""Redis as it is run: behind Sentinel, as a cluster. Made of the system's `redis-server`."""

import re
import subprocess
from pathlib import Path

from specpilot.policy.errors import PolicyError
from specpilot.policy.redis_store import RedisStore
from tests.support.redis_server import SYSTEM
from tests.support.stack import free_port, until

WITHIN_S = 20.0
BUS = 10_000  # a cluster's nodes speak to one another on their port plus this


def is_answering(url: str) -> bool:
    try:
        RedisStore(url).ping()
    except PolicyError:
        return False
    return True


class Node:
    """One `redis-server` on a port of the loopback, its state in a folder of its own."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.folder = folder / str(self.port)
        self.folder.mkdir(parents=True)
        command = [str(SYSTEM), *flags, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def ask(self, *command: str) -> str:
        """What the node answers, as text; nothing while it does not."""
        command = ("redis-cli", "-p", str(self.port), *command)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()

    def until_said(self, said: str, *command: str) -> None:
        until(lambda: said in self.ask(*command), WITHIN_S)

    def is_replicated(self) -> bool:
        """Whether its replica has everything that it wrote."""
        said = self.ask("info", "replication")
        written = re.search(r"master_repl_offset:(\d+)", said)
        return written is not None and f"offset={written[1]}," in said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Sentinels:
    """A primary, its replica and three sentinels that give a silent primary half a second."""

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

    def close(self) -> None:
        for node in (*self.sentinels, self.primary, self.replica):
            node.kill()


class Cluster:
    """Three primaries with a replica each, which give a silent primary a second."""

    def __init__(self, folder: Path) -> None:
        ports: set[int] = set()
        while len(ports) < 6:
            ports.add(free_port() % BUS + 2 * BUS)
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

    def owner_of(self, key: str) -> Node:
        """The primary that holds `key`."""
        slot = int(self.nodes[0].ask("cluster", "keyslot", key))
        for line in self.nodes[0].ask("cluster", "nodes").splitlines():
            _, place, _, _, _, _, _, _, *spans = line.split()
            for low, _, high in (span.partition("-") for span in spans):
                if int(low) <= slot <= int(high or low):
                    port = int(place.partition("@")[0].rpartition(":")[2])
                    return next(node for node in self.nodes if node.port == port)
        raise AssertionError("no node holds the key")

    def empty(self) -> None:
        for node in self.nodes:
            node.ask("flushall")

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

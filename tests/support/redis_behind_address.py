"""Two real Redis servers behind one address, as a balancer or a cloud's service has them, which fail over on demand."""

import socket
import threading
from contextlib import suppress

from tests.support.redis_server import EMBEDDED, RedisServer
from tests.support.redis_topologies import until_replicated
from tests.support.stack import free_port


class Address:
    """A TCP proxy on one port. New connections go where it points now; those that stand stay where they are.

    `says` is answered in place of the server to everything that comes on connections made before it was set.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.says: bytes | None = None
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self.accepted += 1
                server = socket.create_connection(("127.0.0.1", self.target))
                self._sockets.append(server)
                is_old = threading.Event()
                threading.Thread(target=self._pass, args=(client, server, self.says, is_old), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, None, None), daemon=True).start()

    def _pass(
        self, source: socket.socket, sink: socket.socket, said_before: bytes | None, is_old: threading.Event | None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_old is not None and self.says is not None and self.says != said_before:
                    source.sendall(self.says)
                else:
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`; nothing is accepted behind the loop below
        self._acceptor.join()
        self._listener.close()
        for one in self._sockets:
            one.close()


SAYS = {
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "CLUSTERDOWN": b"-CLUSTERDOWN The cluster is down\r\n",
    "MISCONF": b"-MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.\r\n",
    "NOAUTH": b"-NOAUTH Authentication required.\r\n",
}


class Pair:
    """A primary, its replica, and the address that leads to the primary."""

    def __init__(self, executable: str = EMBEDDED) -> None:
        flags = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
        self._servers = [RedisServer(*flags, executable=executable, port=free_port()) for _ in range(2)]
        self.ports = [server.port for server in self._servers]
        self.first, self.second = [server.client for server in self._servers]
        self.second.replicaof("127.0.0.1", self.ports[0])
        self._servers[1].until_it_is("replication", master_link_status="up")
        self.address = Address(self.ports[0])
        self.url = f"redis://127.0.0.1:{self.address.port}"

    def fail_over(self, how: str) -> None:
        """Make the second server the primary; connections to the first stay open and are answered by `how`."""
        until_replicated(self._servers[0])
        self.second.replicaof("NO", "ONE")
        self.address.target = self.ports[1]
        if how == "READONLY":
            self.first.replicaof("127.0.0.1", self.ports[1])
        elif how == "MASTERDOWN":
            self.first.config_set("replica-serve-stale-data", "no")
            self.first.replicaof("127.0.0.1", free_port())
        elif how == "NOREPLICAS":
            self.first.config_set("min-replicas-to-write", 1)
        else:
            self.address.says = SAYS[how]

    def close(self) -> None:
        self.address.close()
        for server in self._servers:
            server.close()

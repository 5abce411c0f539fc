"""A server of the system with a user whose rights a test takes away."""

from pathlib import Path

from specpilot.policy.store import Store
from tests.support.redis_server import SYSTEM, is_answering
from tests.support.redis_topologies import Node
from tests.support.stack import until

NO_CHANNEL = ("resetkeys", "resetchannels", "~*", "+@all")


class Rights:
    """A server with the user `app`; `set` replaces its rights."""

    def __init__(self, folder: Path, executable: str = str(SYSTEM)) -> None:
        self.node = Node(folder, executable=executable)
        self.node.until_said("PONG", "ping")
        self.url = f"redis://app:pw@127.0.0.1:{self.node.port}"
        self.admin = Store(f"redis://127.0.0.1:{self.node.port}")

    def set(self, *rules: str) -> None:
        assert self.node.ask("acl", "setuser", "app", "on", ">pw", *rules) == "OK"
        until(lambda: is_answering(self.url), 10.0)

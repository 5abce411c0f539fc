"""A server of the system with a user whose rights a test takes away."""

from specpilot.policy.store import Store
from tests.support.redis_server import SYSTEM, RedisServer
from tests.support.stack import free_port

NO_CHANNEL = ("resetkeys", "resetchannels", "~*", "+@all")


class Rights(RedisServer):
    """A server whose `url` is that of the user `app`; `set` replaces its rights."""

    def __init__(self, executable: str = str(SYSTEM)) -> None:
        super().__init__(executable=executable, port=free_port())
        self.admin = Store(self.url)
        self.url = f"redis://app:pw@127.0.0.1:{self.port}"

    def set(self, *rules: str) -> None:
        self.client.execute_command("acl", "setuser", "app", "on", ">pw", *rules)

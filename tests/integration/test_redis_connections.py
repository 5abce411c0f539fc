"""Every operation over TLS and as the user of the documented ACL, and connections that are not let in."""

from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.store import Store
from tests.support.certificates import Authority
from tests.support.redis_server import NEEDS_SYSTEM, SERVERS, RedisServer, is_answering
from tests.support.redis_topologies import node
from tests.support.stack import free_port
from tests.support.store_operations import use_everything

pytestmark = NEEDS_SYSTEM
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "redis.md").read_text()
ACL_LINE = next(line for line in PAGE.splitlines() if line.startswith("user specpilot "))


def test_tls_with_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    files = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", str(authority.path))
    port = free_port()
    own = "ssl_certfile={}&ssl_keyfile={}".format(*authority.issue("client"))
    ca = f"ssl_ca_certs={authority.path}"
    with node(*files, "--tls-port", str(port)):
        use_everything(Store(f"rediss://127.0.0.1:{port}?{ca}&{own}"))
        assert is_answering(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none&{own}")
        assert is_answering(f"rediss://localhost:{port}?ssl_check_hostname=false&{ca}&{own}")
        for place, fault in (  # the server is not trusted, asks for a certificate, has another name
            ("127.0.0.1:{}", r"ssl_ca_certs=FILE"),
            (f"127.0.0.1:{{}}?{own}", r"ssl_ca_certs=FILE"),
            (f"127.0.0.1:{{}}?{ca}", "certificate required|Redis does not answer"),
            (f"localhost:{{}}?{ca}&{own}", r"not valid for 'localhost'.*write a name .* \?ssl_check_hostname=false"),
        ):
            with pytest.raises(StoreUnavailableError, match=fault):
                Store(f"rediss://{place.format(port)}").ping()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("server", [name for name in SERVERS if name != "embedded"])
def test_every_operation_by_either_protocol(server: str, protocol: int) -> None:
    with RedisServer(executable=SERVERS[server], port=free_port()) as running:
        store = Store(f"{running.url}?protocol={protocol}")
        use_everything(store)
        own = str(running.client.client_id())  # of the test, by the library's default
        assert {item["resp"] for item in store._redis.client_list() if item["id"] != own} == {str(protocol)}


def test_a_user_of_the_documented_acl_may_do_everything_that_is_needed_and_nothing_else(tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text("user default off\n" + ACL_LINE.replace("PASSWORD", "p@ss") + "\n")
    with node("--aclfile", str(acl)) as running:
        store = Store(f"redis://specpilot:p%40ss@127.0.0.1:{running.port}")
        use_everything(store)
        assert (store.missing_rights(), store.unannounced()) == (None, None)
        for command in (("set", "elsewhere", "1"), ("flushall",), ("config", "get", "dir")):
            with pytest.raises(NoPermissionError):
                store._redis.execute_command(*command)
        for wrong in ("", "specpilot:other@"):
            with pytest.raises(StoreUnavailableError, match="Redis"):
                Store(f"redis://{wrong}127.0.0.1:{running.port}").ping()

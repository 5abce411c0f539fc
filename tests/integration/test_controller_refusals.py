"""Whatever is wrong with a write of the admin API: a clear error, nothing changed, one line of the audit."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from specpilot.policy.access import AdminToken, Role, sha256_of
from specpilot.policy.redis_store import RedisStore
from tests.support.controller_program import TOKEN, Controller, running_controller
from tests.support.controller_writes import WRITES, Watched, Write
from tests.support.patience import PATIENCE_S

EXPIRED = "spt_" + "a" * 12 + "_" + "b" * 43
LARGE = b'{"surprise": "' + b"x" * (10 << 20) + b'"}'


@dataclass
class There:
    """A controller with one of everything that can be written over, each at its second version or newly made."""

    controller: Controller
    store: RedisStore
    tokens: dict[Role, str]
    ids: dict[str, str]

    def send(self, write: Write, query: str = "", body: Any = None, token: str = TOKEN, etag: str = "") -> Any:
        path = write.path.format(**self.ids) + query
        headers = {"If_Match": etag} if etag else {}
        return self.controller.call(path, write.method, write.body if body is None else body, token, **headers)


@pytest.fixture(scope="module")
def there() -> Iterator[There]:
    with running_controller() as controller:
        store = RedisStore(controller.redis.url, PATIENCE_S)
        late = AdminToken("a" * 12, "late", Role.ADMIN, sha256_of(EXPIRED), 1.0, expires_at=time.time() - 1)
        assert store.put_admin_token(late, None)

        def made(path: str, method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            status, answer, _ = controller.call(f"/admin/{path}", method, body)
            assert status in (200, 201), answer
            return dict(answer)

        made("policies/there", "PUT", {"k_max": 5})
        made("policies/there", "PATCH", {"mode": "advise"})
        made("canaries/tried", "PUT", {"policy": {}, "window_s": 3600, "max_duration_s": 86_400})
        made("freezes", "PUT")
        made("freezes/there", "PUT")
        made("model-routes", "PUT", {"routes": {"chat": {"fallback": ["small"]}}})
        made("model-routes", "PATCH", {"routes": {"fast": {"fallback": ["small"]}}})
        tokens = {role: made("tokens", "POST", {"name": f"the {role}", "role": role})["token"] for role in Role}
        ids = {
            "key": made("keys", "POST", {"traffic_class": "code"})["key_id"],
            "token": made("tokens", "POST", {"name": "written over", "role": "viewer"})["token_id"],
        }
        yield There(controller, store, tokens, ids)
        store.close()


def test_every_write_is_on_the_list(there: There) -> None:
    page = there.controller.call("/openapi.json")[1]["paths"]
    writes = {(method.upper(), path) for path, item in page.items() for method in item if method != "get"}
    assert {(method, shape(path)) for method, path in writes} == {(item.method, shape(item.path)) for item in WRITES}


def shape(path: str) -> str:
    return re.sub(r"(there|tried|\{[a-z_]+\})", "{}", path)


@pytest.mark.parametrize("write", WRITES, ids=str)
def test_each_would_be_done_if_nothing_were_wrong_with_it(there: There, write: Write) -> None:
    with Watched(there.store) as watched:
        status, answer, _ = there.send(write, "?validate_only=true", etag='"2"' if write.seen else "")
    assert (status, answer.get("dry_run")) == (200, True), answer
    assert (watched.changed, watched.entries) == (set(), [])


class Wrong(NamedTuple):
    """What is wrong with a call, and the refusal: its status, code, the field at fault and words of the remedy."""

    how: str
    send: Callable[[There, Write], Any]
    status: int
    code: str
    param: str | None
    words: str


def too_low(there: There, write: Write) -> Any:
    return there.send(write, token=there.tokens[Role.VIEWER if write.needs is Role.OPERATOR else Role.OPERATOR])


def unknown_field(there: There, write: Write) -> Any:
    return there.send(write, body={**(write.body or {}), "surprise": None}, etag='"2"' if write.seen else "")


def misspelt_query(there: There, write: Write) -> Any:
    return there.send(write, "?surprise=true", etag='"2"' if write.seen else "")


WRONGS = [
    Wrong("role", too_low, 403, "role_too_low", "Authorization", "ask an admin for such a token"),
    Wrong("expired", lambda it, write: it.send(write, token=EXPIRED), 401, "token_expired", "Authorization", "rotate"),
    Wrong("unknown", lambda it, write: it.send(write, token="no"), 401, "invalid_admin_token", "Authorization", "send"),
    Wrong(
        "replayed", lambda it, write: it.send(write, etag='"1"'), 412, "version_conflict", "If-Match", "GET it again"
    ),
    Wrong("large", lambda it, write: it.send(write, body=LARGE), 413, "body_too_large", None, "smaller document"),
    Wrong("field", unknown_field, 422, "invalid_document", "surprise", "surprise"),
    Wrong("query", misspelt_query, 422, "invalid_document", "surprise", "give validate_only, comment or nothing"),
]
ALIKE = ("expired", "unknown", "large", "query")
"""What all writes share refuses these: they are tried with one write that takes a document and one that does not."""
CASES = [
    pytest.param(wrong, write, id=f"{wrong.how} {write}")
    for wrong in WRONGS
    for write in ((WRITES[0], WRITES[2]) if wrong.how in ALIKE else WRITES)
    if write.seen or wrong.how != "replayed"
]


@pytest.mark.parametrize(("wrong", "write"), CASES)
def test_a_refused_write_says_what_is_wrong_changes_nothing_and_leaves_one_line(
    there: There, wrong: Wrong, write: Write
) -> None:
    with Watched(there.store) as watched:
        status, answer, _ = wrong.send(there, write)
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (wrong.status, wrong.code, wrong.param), error
    assert wrong.words in error["message"]
    assert watched.changed == set()
    [entry] = watched.entries
    assert (entry.result, entry.status, entry.code, entry.source) == ("refused", status, wrong.code, "127.0.0.1")
    assert entry.message == error["message"]
    assert entry.changes == ()
    if wrong.how == "role":
        low = "viewer" if write.needs is Role.OPERATOR else "operator"
        assert (entry.who, entry.role) == (f"the {low}", low)
        assert there.send(write, "?validate_only=true", token=there.tokens[Role(low)])[0] == 403

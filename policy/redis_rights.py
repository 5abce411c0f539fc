"""The rights that SpecPilot needs in Redis, and which of them its user lacks: each is tried on a key without content.

From Redis 7 on, a user may use no channel unless a rule grants it.
"""

import re
from typing import Any, Final

import redis
from redis.exceptions import NoPermissionError

from specpilot.policy import redis_keys

CHANNELS: Final = "&{specpilot}:*"
_KEYS: Final = ("~{specpilot}:*", "~specpilot:*")
RIGHTS: Final = f"{' '.join(_KEYS)} {CHANNELS} +@read +@write +@pubsub +@scripting +@transaction +@connection +info"
"""The rules of the least user, without those that take away what it does not need (see docs/operations/redis.md)."""

_COMMAND: Final = re.compile(r"the '([^']+)'")
_KEY, _STREAM = redis_keys.RIGHTS, redis_keys.decisions("rights", "")
_TRIALS: Final[tuple[tuple[str, ...], ...]] = (
    ("SET", _KEY, "", "PX", "1000"),
    # What would change another kind of value than the string above: refused with WRONGTYPE, if the right is there.
    ("HSET", _KEY, "a", "1"),
    ("SADD", _KEY, "a"),
    ("INCR", _KEY),
    ("HGET", _KEY, "a"),
    ("HMGET", _KEY, "a"),
    ("HGETALL", _KEY),
    ("HKEYS", _KEY),
    ("HDEL", _KEY, "a"),
    ("SMEMBERS", _KEY),
    ("SREM", _KEY, "a"),
    ("XADD", _KEY, "*", "a", "1"),
    ("XRANGE", _KEY, "-", "+"),
    ("GET", _KEY),
    ("MGET", _KEY),
    ("EXISTS", _KEY),
    ("PEXPIRE", _KEY, "1000"),
    ("DEL", _KEY),
    ("EVALSHA", "0" * 40, "1", _KEY),
    ("SCRIPT LOAD", "return 1"),
    ("INFO", "server"),
    # The streams of decisions, which have another prefix.
    ("XREVRANGE", _STREAM, "+", "-", "COUNT", "1"),
    ("EXPIRE", _STREAM, "1"),
)


def missing(client: Any, user: str | None) -> str | None:
    """Return a sentence that names the rules which `user` lacks; `None` if it has all. Raises other errors of Redis."""
    rules = _missing(client)
    if not rules:
        return None
    remedy = f"ACL SETUSER {user or 'default'} {' '.join(rules)}"
    if rules == [CHANNELS]:
        return f"the user of Redis may use no channel, so changes arrive only when Redis is polled; grant it: {remedy}"
    return f"the user of Redis lacks rights, so some calls will fail; grant them: {remedy}"


def _missing(client: Any) -> list[str]:
    rules: dict[str, None] = {}
    for trial in _TRIALS:
        try:
            client.execute_command(*trial)
        except NoPermissionError as error:
            rules |= dict.fromkeys(_rules(str(error)))
        except redis.ResponseError:
            pass  # it is permitted
    try:
        client.pipeline(transaction=True).get(_KEY).execute()
    except redis.ResponseError as error:  # that of EXEC has another class
        rules |= dict.fromkeys(_rules(str(error)))
    for channel in (redis_keys.CHANGES, redis_keys.pool_changes("rights", "")):
        try:
            client.publish(channel, _KEY)  # of no interest to subscribers
        except NoPermissionError as error:
            rules |= dict.fromkeys(_rules(str(error)))
        try:
            with client.pubsub() as subscription:
                subscription.subscribe(channel)
                subscription.get_message(timeout=1.0)
        except NoPermissionError as error:
            rules |= dict.fromkeys(_rules(str(error)))
    return list(rules)


def _rules(error: str) -> tuple[str, ...]:
    """Return the rules that permit what Redis refused with `error`."""
    if "channel" in error:
        return (CHANNELS,)
    if " key" in error:
        return _KEYS
    command = _COMMAND.search(error.replace("EXEC without MULTI", "the 'multi'"))
    return ("+" + command[1],) if command else ("+@all",)

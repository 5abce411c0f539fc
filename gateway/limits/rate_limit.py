"""The limits of one API key, and this replica's share of them. Pure: `now` is monotonic seconds. For one thread.

Limits are divided among replicas and not counted in Redis, because a count would put Redis on the path of each request.

Bucket. A limit of L per minute is a bucket that holds C = s * L and fills with C per minute, where s (0..1] is the
share of this replica. A request of cost c passes when the bucket holds at least min(c, C), and c is subtracted, below
zero if necessary. So a request with a cost above C passes too, once per c / C minutes. Tokens are charged by estimate;
`settle` corrects the charge when the usage is known. A change of s changes C and the fill rate, and never adds to the
content. A request that exceeds one limit of its key is charged to none. A key with requests under way is not dropped,
however long they last.

Share. Each replica publishes its demand for each key: the requests and tokens that it was asked for, rejected ones
included, in limits per minute, averaged over the last `DEMAND_S` seconds, at most `DEMAND_MAX`. With the demand d_i of
replica i,

    s_i = (d_i + PRIOR) / sum_j (d_j + PRIOR)

which is equal shares for a key without requests, and leaves PRIOR for replicas that may get the next request. Every
replica computes it from the same published demands, so the shares of one moment add up to 1. A bucket begins full. Only
a bucket of a limit that is in use at other replicas begins with PRIOR * L, or the cost of its first request, because
the other replicas already have the rest.

Bound. One replica allows at most 2 L in a minute (L saved up, and L that flows in), and L in each following minute,
plus the debt of one request. R replicas together allow the same, with one debt each, plus two terms:

- Replicas use demands that are up to `EXCHANGE_S` old (`gateway.engines.redis_watch`), so when a share of x moves to
  other replicas, both sides allow it for that time: x * L * EXCHANGE_S / 60, which is 1.7 % of L for a whole limit.
  When Redis is back without its data, each replica may count as the only one until its next exchange: at most (R - 1)
  times that.
- A bucket that begins during use adds its first content.

| failure | shares |
|---|---|
| no replica can read demands | the last shares apply; they add up to 1, except for shares that were moving then |
| a replica has never read any | it has a share of 1, so R such replicas allow R times the bound |
| the same, N workers of one program | each has 1 / N, even if all requests come to one of them |
| one replica is cut off | it keeps its share; after `PRESENCE_S` the others divide the whole: its share counts twice |

Places. A limit of L requests at once is divided by the same shares: a replica has max(1, round(s * L)) places. A
request passes while fewer requests than that are under way here, including those that wait for an engine. The demand of
such a limit counts as (requests under way + the new one) / L, and does not decay while they last. A request may last
for an hour, so it must not pass by an outdated share. Therefore s is the lesser of the last two exchanges' shares, and
grows only when every other replica has read the demands from which it was computed. So at most L requests are under
way, plus one for each replica whose share is below one place. Requests that are under way when places move to other
replicas continue, in addition to this bound, until they end.

All of this bounds the charges. Tokens are charged by estimate: usage beyond the estimates of the requests under way
becomes a debt afterwards, and may exceed one request's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Final

from specpilot.policy.api_key import ApiKey, GatewayUsage

DEMAND_S: Final = 5.0
"""Seconds over which demand is averaged. With a smaller value shares follow bursts, and move more often."""

DEMAND_MAX: Final = 2.0
"""The largest demand that one replica publishes, in limits per minute. It bounds the effect of many requests at one
replica."""

PRIOR: Final = 0.02
"""Demand that is added for every replica: the part of a limit that a replica without requests keeps."""

PLACE_RETRY_S: Final = 1.0
"""`Retry-After` for a place, in seconds. The end of a request cannot be predicted, and places move every second."""

IDLE_DEMAND: Final = 0.00001
"""A demand below this is not published. The last request was then a minute ago, and its bucket is full."""

MINUTE_S: Final = 60.0
CLIENT_LEFT: Final = 499
"""The status of a request whose client disconnected before the end of the response."""
_ERROR_STATUS: Final = 400
REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
CONCURRENT: Final = "concurrent_requests"


class Bucket:
    """One limit of one key at this replica."""

    __slots__ = ("_at", "capacity", "held", "limit")

    def __init__(self, limit: int, share: float, now: float) -> None:
        """`limit` is per minute, over all replicas."""
        self.limit = limit
        self.capacity = self.held = limit * share
        self._at = now  # monotonic seconds

    @property
    def remaining(self) -> int:
        """The whole units that would pass here now."""
        return max(0, int(self.held))

    @property
    def reset_s(self) -> float:
        """Seconds until the bucket is full."""
        return (self.capacity - self.held) * MINUTE_S / self.capacity

    def fill(self, now: float) -> None:
        """Add the inflow up to `now`."""
        if now > self._at:  # a request whose body was decoded in pauses has an earlier time
            self.held += (now - self._at) * self.capacity / MINUTE_S
            self._at = now
        self.held = min(self.capacity, self.held)

    def wait_s(self, cost: float) -> float:
        """Return the seconds until a request of `cost` would pass; 0: now."""
        return max(0.0, min(cost, self.capacity) - self.held) * MINUTE_S / self.capacity

    def resize(self, share: float) -> None:
        """Change the capacity to `share` of the limit."""
        self.capacity = self.limit * share
        self.held = min(self.held, self.capacity)


@dataclass(frozen=True, slots=True)
class Denied:
    """The limit that a request exceeds (`REQUESTS`, `TOKENS` or `CONCURRENT`), and when it would pass."""

    kind: str
    limit: int
    retry_after_s: float

    @property
    def message(self) -> str:
        """The message for the client."""
        if self.kind == CONCURRENT:
            limit = f"{self.limit} requests of this API key may be under way at once"
            return f"{limit}; wait for the end of one, or try again later"
        return f"rate limit reached: {self.limit} {self.kind} per minute for this API key; try again later"


class Meter:
    """The buckets, places and demand of one key at this replica. `buckets` are by what they limit."""

    __slots__ = ("_at", "_concurrent", "_demand", "buckets", "lasting_share", "share", "unsettled")

    def __init__(self, key: ApiKey, share: float, now: float, demand: float = 0.0, unsettled: int = 0) -> None:
        """`unsettled` is the number of requests that have passed and not ended."""
        self.share = self.lasting_share = share
        self.buckets = {kind: Bucket(limit, share, now) for kind, limit in _limits_of(key).items()}
        self._concurrent = key.max_concurrent_requests
        self._demand = demand
        self._at = now
        self.unsettled = unsettled

    def begin_during_use(self, tokens: float) -> None:
        """Begin with a small content: other replicas use the key now. `tokens` is the cost of the first request."""
        for kind, bucket in self.buckets.items():
            bucket.held = min(bucket.held, max(bucket.limit * PRIOR, 1.0 if kind == REQUESTS else tokens))

    def states(self, key: ApiKey) -> bool:
        """Whether the limits are still those of `key`."""
        limits = {kind: bucket.limit for kind, bucket in self.buckets.items()}
        return limits == _limits_of(key) and self._concurrent == key.max_concurrent_requests

    def admit(self, tokens: float, now: float) -> Denied | None:
        """Charge a request of an estimated number of `tokens`, or return why it does not pass."""
        demand = wait_s = 0.0  # the demand is in limits
        denied: Denied | None = None
        for kind, bucket in self.buckets.items():
            cost = 1.0 if kind == REQUESTS else tokens
            bucket.fill(now)
            demand = max(demand, cost / bucket.limit)
            bucket_wait_s = bucket.wait_s(cost)
            if bucket_wait_s > wait_s:
                wait_s = bucket_wait_s
                denied = Denied(kind, bucket.limit, wait_s)
        # Before the decision: rejected requests are demand too.
        self._demand = min(DEMAND_MAX, self.demand(now) + demand * MINUTE_S / DEMAND_S)
        limit = self._concurrent
        if limit is not None:
            self._demand = max(self._demand, min(DEMAND_MAX, (self.unsettled + 1) / limit))
            if self.unsettled >= max(1, round(self.lasting_share * limit)):
                return Denied(CONCURRENT, limit, PLACE_RETRY_S)
        if denied is not None:
            return denied
        for kind, bucket in self.buckets.items():
            bucket.held -= 1.0 if kind == REQUESTS else tokens
        self.unsettled += 1
        return None

    def settle(self, estimated_tokens: float, used_tokens: float, now: float) -> None:
        """A request that passed with `estimated_tokens` has ended and used `used_tokens`."""
        self.unsettled -= 1
        bucket = self.buckets.get(TOKENS)
        if bucket is not None:
            bucket.fill(now)  # first: inflow above the capacity must be lost, not be used for this request
            bucket.held = min(bucket.capacity, bucket.held + estimated_tokens - used_tokens)

    def demand(self, now: float) -> float:
        """Return the demand at `now`, in limits per minute."""
        if now > self._at:
            self._demand *= exp((self._at - now) / DEMAND_S)
            self._at = now
        if self._concurrent is not None and self.unsettled:
            self._demand = max(self._demand, min(DEMAND_MAX, self.unsettled / self._concurrent))
        return self._demand

    def set_share(self, share: float, now: float) -> None:
        """Change this replica's share of the limits."""
        self.share = share
        for bucket in self.buckets.values():
            bucket.fill(now)
            bucket.resize(share)

    def is_idle(self, now: float) -> bool:
        """Whether the meter can be dropped without effect: no request is under way and every bucket is full."""
        if self.unsettled:
            return False
        for bucket in self.buckets.values():
            bucket.fill(now)
            if bucket.held < bucket.capacity:
                return False
        return self.demand(now) < IDLE_DEMAND


@dataclass(frozen=True, slots=True)
class Shares:
    """This replica's share (0..1] of each key's limits; `other` for keys without demand."""

    by_key: Mapping[str, float] = field(default_factory=dict)
    other: float = 1.0

    def of(self, key_id: str) -> float:
        """Return the share of the limits of key `key_id`."""
        return self.by_key.get(key_id, self.other)


def divide(gateway_id: str, statements: Sequence[GatewayUsage]) -> Shares:
    """Return the shares of replica `gateway_id`, whose own demand is among `statements`."""
    demands: Mapping[str, float] = {}  # of this replica
    total: dict[str, float] = {}
    for statement in statements:
        if statement.gateway_id == gateway_id:
            demands = statement.demand
        for key_id, demand in statement.demand.items():
            total[key_id] = total.get(key_id, 0.0) + demand
    count = max(1, len(statements))
    return Shares(
        {key_id: (demands.get(key_id, 0.0) + PRIOR) / (demand + count * PRIOR) for key_id, demand in total.items()},
        1.0 / count,
    )


def used_tokens(estimate: int, prompt: int, usage: int | None, output: int, status: int) -> int:
    """Return the tokens to charge for a request that was sent to an engine and has ended.

    `usage` is the one in the response. Without it (`None`) the charge is the `estimate` (its part `prompt` is for the
    prompt), or more if `output` exceeds its part of the estimate. A response with an error status is not charged.
    """
    if status >= _ERROR_STATUS and status != CLIENT_LEFT:
        return 0
    return max(estimate, min(prompt, estimate) + output) if usage is None else usage


class Rates:
    """The meters of every key that has limits and was used recently."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self._shares = Shares()

    def meter(self, key: ApiKey, tokens: float, now: float) -> Meter:
        """Return the meter of `key`, which keys of one `key_id` share. `tokens` is the cost of the current request."""
        meter = self._meters.get(key.key_id)
        if meter is None:
            meter = self._meters[key.key_id] = Meter(key, self._shares.of(key.key_id), now)
            if key.key_id in self._shares.by_key:
                meter.begin_during_use(tokens)
        elif not meter.states(key):
            meter = self._meters[key.key_id] = _with_new_limits(meter, key, now)
        return meter

    def settle(self, key_id: str, estimate: float, used: float, now: float) -> None:
        """Correct the charge of a request that has ended, by the limits in force now."""
        meter = self._meters.get(key_id)
        if meter is not None:
            meter.settle(estimate, used, now)

    def adopt(self, shares: Shares, now: float) -> None:
        """Apply new `shares`."""
        self._shares = shares
        for key_id, meter in self._meters.items():
            share = shares.of(key_id)
            meter.lasting_share = min(share, meter.share)  # for places: it grows one exchange later
            if share != meter.share:
                meter.set_share(share, now)

    def demands(self, now: float) -> dict[str, float]:
        """Return the demand to publish for each key, and drop the keys that are idle at every replica."""
        used = self._shares.by_key
        for key_id in [key_id for key_id, meter in self._meters.items() if key_id not in used and meter.is_idle(now)]:
            del self._meters[key_id]
        demands = {key_id: meter.demand(now) for key_id, meter in self._meters.items()}
        return {key_id: demand for key_id, demand in demands.items() if demand >= IDLE_DEMAND}


def _with_new_limits(old: Meter, key: ApiKey, now: float) -> Meter:
    """Return the meter for changed limits. It keeps the content of the old buckets, up to the new capacity."""
    new = Meter(key, old.share, now, old.demand(now), old.unsettled)
    new.lasting_share = old.lasting_share
    for kind, bucket in new.buckets.items():
        before = old.buckets.get(kind)
        if before is not None:
            before.fill(now)
            bucket.held = min(before.held, bucket.capacity)
    return new


def _limits_of(key: ApiKey) -> dict[str, int]:
    """Return the limits per minute of `key`."""
    limits = ((REQUESTS, key.requests_per_minute), (TOKENS, key.tokens_per_minute))
    return {kind: limit for kind, limit in limits if limit is not None}

"""The gateway's metrics, and how the numbers of several workers become one. Pure.

A tally holds one process's numbers as plain JSON values: by the name of a metric its number, within one mapping for
each of its labels. The number of a histogram is a list: the counts of its buckets, then its sum. Counters only grow,
and those of an ended worker are kept; gauges are dropped with their worker. A number that only one worker has is used
as it is: unknown is not zero.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final

PREFIX: Final = "specpilot_gateway_"

Tally = Mapping[str, Any]

_Merge = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Only a histogram has `bounds`: the inclusive upper bounds of its buckets, without infinity.

    `gauge` is how two workers' numbers of a gauge are merged; `None` for a counter or histogram, which are added.
    """

    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    gauge: _Merge | None = None


_PAIR: Final = ("model", "traffic_class")

_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
)  # fmt: skip

_ITL_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip

_OVERHEAD_SECONDS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)

_LENGTHS: Final = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 17.0)

FAMILIES: Final[Mapping[str, Family]] = {
    "requests": Family("Requests answered, by HTTP status (499: the client left first).", (*_PAIR, "status")),
    "slo_requests": Family(
        "Streamed requests by whether they met the latency goal of their class.", (*_PAIR, "measure", "result")
    ),
    "output_tokens": Family(
        "Output tokens delivered; source=usage: as the engine stated, source=events: one per event.",
        (*_PAIR, "source"),
    ),
    "in_flight": Family("Requests under way, including those that wait for an engine.", _PAIR, gauge=operator.add),
    "queue_length": Family("Requests that wait for an engine with room.", _PAIR, gauge=operator.add),
    "ttft_seconds": Family("Seconds from the whole request to the first byte of a streamed body.", _PAIR, _SECONDS),
    "itl_seconds": Family("Seconds between two events of a stream, as read from the engine.", _PAIR, _ITL_SECONDS),
    "request_duration_seconds": Family("Seconds from the whole request to the end of its response.", _PAIR, _SECONDS),
    "overhead_seconds": Family(
        "Seconds from the whole request until its bytes are first sent to an engine, without queueing.",
        _PAIR,
        _OVERHEAD_SECONDS,
    ),
    "queue_seconds": Family(
        "Waiting times of requests that had to wait for an engine, with or without success.", _PAIR, _SECONDS
    ),
    "acceptance_length": Family(
        "Mean acceptance length of a request, bonus token included, as the engine stated.", _PAIR, _LENGTHS
    ),
    "upstream_errors": Family("Engine failures, by reason.", ("reason",)),
    "disconnects": Family("Clients that left before the end, by phase.", ("phase",)),
    "choices": Family("Engines chosen among several, by the rule that chose.", ("rule",)),
    "spans": Family("Spans of requests, by outcome; absent without tracing.", ("outcome",)),
    "refusals": Family("Requests rejected for lack of room, by kind.", ("kind",)),
    "key_requests": Family(
        "Requests with an API key that were answered, by key and HTTP status.", ("key_id", "status")
    ),
    "key_tokens": Family(
        "Tokens by API key: input as engines stated it, output as in output_tokens.", ("key_id", "direction")
    ),
    "model_routes": Family(
        "Requests for a name that has a model route, by the chosen model and the rule.",
        ("requested_model", "model", "rule"),
    ),
    "retries": Family("Requests sent to a second engine or connection."),
    "unknown_class": Family("Requests whose header, body or key named a class that the model does not have."),
    "log_lines_dropped": Family("Access log lines dropped because the reader of standard error was too slow."),
    "policy_version": Family("Version of the policy applied to a model; 0: none.", ("model",), gauge=min),
    "engine_ejected": Family("1 while an engine is ejected because it failed.", ("engine",), gauge=max),
    "snapshot_age_seconds": Family("Seconds since Redis was last read; absent without Redis.", gauge=max),
    "returned_keys": Family(
        "API keys in force that Redis had lacked before: its data went back, and they may be revoked.", gauge=max
    ),
}
"""The metrics by their names without `PREFIX`. The oldest policy and the oldest snapshot of all workers are shown."""


def total(tallies: Iterable[Tally]) -> dict[str, Any]:
    """Return all `tallies` merged into one."""
    workers = list(tallies)
    return {
        name: reduce(partial(_merged, family.gauge or operator.add), (worker.get(name) for worker in workers), None)
        for name, family in FAMILIES.items()
    }


def lasting(tally: Tally) -> dict[str, Any]:
    """Return the part of `tally` that outlives its worker."""
    return {name: numbers for name, numbers in tally.items() if FAMILIES[name].gauge is None}


def _merged(merge: _Merge, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict):
        return {key: _merged(merge, left.get(key), right.get(key)) for key in left | right}
    if isinstance(left, list):
        return [merge(one, other) for one, other in zip(left, right, strict=True)]
    return merge(left, right)

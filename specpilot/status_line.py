"""One live line about the running system: requests and failures, output tokens per second, K and acceptance by class.

A rejected request counts as failed, one that its client left does not. K is the mean over the drafts since the previous
line, with its range if requests of a class had different K.

On a terminal the line is rewritten in place once a second; elsewhere it is printed every `PRINT_EVERY_S` seconds.
"""

from collections import defaultdict
from collections.abc import Sequence
from http.client import HTTPException
from typing import TextIO

from prometheus_client.parser import text_string_to_metric_families

from specpilot.policy import engine_metrics as names
from specpilot.policy.clock import Clock
from specpilot.policy.http_client import open_url

PRINT_EVERY_S = 10.0
Sample = dict[tuple[str, str, str], float]
"""(metric, traffic class, K or status) -> value summed over engines and other labels; empty where a metric has none."""

_REQUESTS = "specpilot_gateway_requests_total"
_FIRST_FAILURE, _CLIENT_LEFT = 400, 499


class StatusLine:
    """Reads the programs' metrics and writes the line."""

    def __init__(self, gateway_url: str, engine_urls: Sequence[str], clock: Clock) -> None:
        self._gateway_url = gateway_url
        self._engine_urls = engine_urls
        self._clock = clock
        self._before: tuple[float, Sample] | None = None
        self._printed_at = float("-inf")

    def show(self, out: TextIO) -> None:
        """Write the line as it is now."""
        if not out.isatty() and self._clock.monotonic() - self._printed_at < PRINT_EVERY_S:
            return
        self._printed_at = self._clock.monotonic()
        now, sample = self._clock.monotonic(), self._read()
        before = self._before
        self._before = (now, sample)
        if before is not None:
            line = worded(before[1], sample, now - before[0])
            out.write(f"\r\033[K{line[:160]}" if out.isatty() else line + "\n")
            out.flush()

    def _read(self) -> Sample:
        sample: Sample = defaultdict(float)
        for url in (self._gateway_url, *self._engine_urls):
            try:
                with open_url(f"{url}/metrics", timeout=2.0, is_own=True) as reply:
                    families = list(text_string_to_metric_families(reply.read().decode()))
            except (OSError, HTTPException, ValueError):  # the program ends in the middle, or another one answers
                continue
            for family in families:
                if not family.name.startswith("specpilot_"):
                    continue
                for item in family.samples:
                    third = item.labels.get(names.LABEL_K) or item.labels.get("status", "")
                    sample[item.name, item.labels.get(names.LABEL_CLASS, ""), third] += item.value
        return sample


def worded(before: Sample, now: Sample, seconds: float) -> str:
    """Return the line for the `seconds` between two samples. Acceptance length is tokens per draft."""
    risen_by = {key: max(0.0, value - before.get(key, 0.0)) for key, value in now.items()}

    def rise(name: str, traffic_class: str | None = None) -> float:
        return sum(risen for key, risen in risen_by.items() if key[0] == name and traffic_class in (None, key[1]))

    def k_of(traffic_class: str) -> str:
        risen = {int(key[2]): by for key, by in risen_by.items() if key[:2] == (names.DRAFTS, traffic_class) and by}
        if len(risen) == 1:
            return str(*risen)
        mean = sum(k * count for k, count in risen.items()) / sum(risen.values())
        return f"{mean:.1f} ({min(risen)}..{max(risen)})"

    classes = sorted({key[1] for key in now if key[0] == names.DRAFTS})
    by_class = "  ".join(
        f"{name} K={k_of(name)} AL={rise(names.DECODE_TOKENS, name) / rise(names.DRAFTS, name):.2f}"
        for name in classes
        if rise(names.DRAFTS, name)
    )
    failed = sum(risen for key, risen in risen_by.items() if key[0] == _REQUESTS and _is_failure(key[2])) / seconds
    requests = f"{rise(_REQUESTS) / seconds:5.1f} req/s" + (f" ({failed:.1f} failed)" if failed else "")
    running = sum(value for key, value in now.items() if key[0] == names.RUNNING_DECODES)
    otps = rise(names.DECODE_TOKENS) / seconds
    return f"{requests}  {running:3.0f} running  {otps:6.0f} tok/s  {by_class or 'idle'}"


def _is_failure(status: str) -> bool:
    """Whether a request of this `status` was rejected or failed; one that its client left is neither."""
    return int(status) >= _FIRST_FAILURE and int(status) != _CLIENT_LEFT

"""A measurement's access to a running system: its admin API, its engines' counters, its start and stop."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from prometheus_client.parser import text_string_to_metric_families

from specpilot.policy import engine_metrics as names
from specpilot.policy.http_client import is_controller, open_url
from specpilot.policy.settings import fail

GENERATED = "vllm:generation_tokens_total"  # vLLM's own count, so that no rate depends on the adapter's counters
_RESULTS = (names.WITHIN, names.BEYOND)


@dataclass(frozen=True, slots=True)
class Reading:
    """The engines' counters at one moment, since their starts: generated tokens, K and acceptance by class.

    `verified_tokens` is the sum of the K of `drafts`. Requests within a latency goal and beyond it are by class and
    measure.
    """

    at: float
    tokens: float
    drafts: Mapping[str, float]
    verified_tokens: Mapping[str, float]
    delivered_tokens: Mapping[str, float]
    within_goal: Mapping[tuple[str, str], float] = field(default_factory=dict)
    beyond_goal: Mapping[tuple[str, str], float] = field(default_factory=dict)


def reading(pages: Iterable[str], at: float) -> Reading:
    """Return the sums over the engines' `pages` of metrics."""
    sums: dict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    goals: dict[str, defaultdict[tuple[str, str], float]] = {result: defaultdict(float) for result in _RESULTS}
    for page in pages:
        for sample in (item for family in text_string_to_metric_families(page) for item in family.samples):
            traffic_class = sample.labels.get(names.LABEL_CLASS, "")
            sums[sample.name][traffic_class] += sample.value
            if sample.name == names.DRAFTS:
                sums["verified"][traffic_class] += sample.value * int(sample.labels[names.LABEL_K])
            if sample.name == names.SLO_REQUESTS:
                goals[sample.labels[names.LABEL_RESULT]][traffic_class, sample.labels[names.LABEL_MEASURE]] += (
                    sample.value
                )
    tokens = sum(sums[GENERATED].values())
    by_class = (sums[names.DRAFTS], sums["verified"], sums[names.DECODE_TOKENS])
    return Reading(at, tokens, *by_class, *(goals[result] for result in _RESULTS))


class System:
    """A client of the gateway, the controller and the engines of one running system."""

    def __init__(self, gateway_url: str, admin_url: str, admin_token: str | None) -> None:
        self.gateway_url = gateway_url
        self.admin_url = admin_url
        self._token = admin_token

    def is_up(self) -> bool:
        """Whether gateway and controller answer."""
        try:
            with open_url(f"{self.gateway_url}/ready", timeout=2.0), open_url(f"{self.admin_url}/health", timeout=2.0):
                return True
        except (OSError, HTTPException):
            return False

    def engine_urls(self) -> Sequence[str]:
        """Return the engines' URLs, which the controller knows."""
        return [str(engine["url"]) for engine in _items(self._admin("GET", "/admin/engines")[0])]

    def policy(self, model: str) -> dict[str, Any]:
        """Return the model's policy document."""
        body, _ = self._admin("GET", f"/admin/policies/{model}")
        return dict(body.get("policy", body))

    def put_policy(self, policy: Mapping[str, Any]) -> None:
        """Replace the model's policy."""
        path = f"/admin/policies/{policy['model']}"
        _, etag = self._admin("GET", path)
        self._admin("PUT", f"{path}?comment=specpilot+bench+demo", policy, {"If-Match": etag})

    def read(self) -> Reading:
        """Return the sum of the engines' counters."""
        pages = []
        for url in self.engine_urls():
            with open_url(f"{url}/metrics", timeout=5.0) as reply:
                pages.append(reply.read().decode())
        return reading(pages, time.monotonic())

    def decisions(self, model: str, since: float) -> list[dict[str, Any]]:
        """Return the decisions made since `since` (Unix seconds), oldest first."""
        items = _items(self._admin("GET", f"/admin/decisions?model={model}&limit=1000")[0])
        return [item for item in reversed(items) if item["at"] >= since]

    def _admin(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, str]:
        request = Request(  # noqa: S310 - the address that the user gave
            self.admin_url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **(headers or {})},
        )
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with open_url(request, timeout=10.0) as reply:
                if not is_controller(reply.headers):
                    fail("specpilot bench", f"--admin-url: no controller answers at {self.admin_url}")
                return json.load(reply), reply.headers.get("ETag", "")
        except HTTPError as error:
            fail("specpilot bench", f"{method} {path}: {error.code} {error.read().decode(errors='replace')}")


def start_up() -> subprocess.Popen[bytes]:
    """Start `specpilot up` as a child, with its output shown. The caller stops it."""
    return subprocess.Popen([sys.executable, "-P", "-m", "specpilot.cli", "up"])


def _items(body: Any) -> list[dict[str, Any]]:
    if isinstance(body, dict):
        return list(next(value for value in body.values() if isinstance(value, list)))
    return list(body)

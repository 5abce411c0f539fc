"""What the controller tells Prometheus: one gauge for each variable of the law, one counter by reason.

Labels are models, pools and classes that the controller itself publishes; no value comes from a client.
"""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.facts import Verdict
from controller.guard import Reason

PREFIX = "specpilot_controller_"
_POOL = ("model_name", "pool")
_CLASS = (*_POOL, "traffic_class")


class ControllerMetrics:
    """The registry of one controller. `render` gives the page of `/metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(PREFIX + name, text, labels, registry=self.registry)

        self._acceptance = gauge("acceptance_ratio", "Conditional acceptance a_i", (*_CLASS, "position"))
        self._survival = gauge("survival_ratio", "Survival S_i", (*_CLASS, "position"))
        self._k = gauge("k", "K that the decided schedule gives at the present load", _CLASS)
        self._predicted = gauge("predicted_goodput_tokens_per_second", "Predicted, by schedule", (*_POOL, "schedule"))
        self._measured = gauge("measured_goodput_tokens_per_second", "Measured in decode-only steps", _POOL)
        self._predicted_step = gauge("predicted_step_seconds", "Predicted mean step under the schedule in force", _POOL)
        self._measured_step = gauge("measured_step_seconds", "Measured mean decode-only step", _POOL)
        self._surprise = gauge("cost_surprise_ratio", "Relative error of step times before they were learned", _POOL)
        self._gain = gauge(
            "predicted_gain_ratio", "Predicted goodput of the best schedule over the one in force", _POOL
        )
        self._probe = gauge("probe_ratio", "Share of probe steps that is published", _POOL)
        self._canary = gauge(
            "canary_gain_ratio", "Gain of the running or latest canary over the present policy",
            ("model_name", "measure", "bound"),
        )  # fmt: skip
        self._version = gauge("schedule_version", "Version published last", _POOL)
        self._lease = gauge("lease_held", "1 while this controller leads")
        self._store = gauge("store_up", "1 while Redis answers")
        self._age = gauge("scrape_age_seconds", "Age of the last successful scrape", ("engine_id",))
        self._ticks = Histogram(
            PREFIX + "tick_seconds", "Duration of one tick", registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )  # fmt: skip
        self._decisions = Counter(
            PREFIX + "decisions_total", "Decisions by reason", (*_POOL, "reason"), registry=self.registry
        )
        self._errors = Counter(
            PREFIX + "tick_errors_total", "Ticks, or pools in a tick, that failed unexpectedly", registry=self.registry
        )
        self._series: dict[tuple[str, str], set[tuple[Gauge, tuple[str, ...]]]] = {}  # by model and pool
        self._told: set[tuple[str, str]] = set()  # in this tick

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self.registry)

    def show_tick(self, duration_s: float, *, leads: bool, store_up: bool, ages_s: Iterable[tuple[str, float]]) -> None:
        """Show the state after one tick."""
        self._ticks.observe(duration_s)
        self._lease.set(leads)
        self._store.set(store_up)
        for gone in self._series.keys() - self._told:
            for metric, labels in self._series.pop(gone):
                metric.remove(*labels)
        self._told = set()
        self._age.clear()
        for engine_id, age_s in ages_s:
            self._age.labels(engine_id).set(age_s)

    def count_error(self) -> None:
        """Count a tick that failed for a reason nobody foresaw."""
        self._errors.inc()

    def show_version(self, model: str, pool: str, version: int) -> None:
        """Show the version that was published last."""
        self._show(self._version, version, model, pool)

    def show_decision(self, model: str, pool: str, reason: Reason, verdict: Verdict, k: dict[str, int]) -> None:
        """Show what was decided for one pool; `k` is K by class at the present load."""
        for each in Reason:  # all of them from the first tick on, or their first increase would not be seen
            self._decisions.labels(model, pool, each.value).inc(each is reason)
        self._show(self._probe, verdict.probe_ratio, model, pool)
        for name, value in k.items():
            self._show(self._k, value, model, pool, name)
        self._show(self._gain, verdict.gain_ratio, model, pool)
        evidence = verdict.evidence
        self._show(self._surprise, evidence.get("cost_surprise_ratio"), model, pool)
        goodput: dict[str, Any] = evidence.get("goodput", {})
        for schedule in ("in_force", "best", "static"):
            self._show(self._predicted, goodput.get(f"predicted_{schedule}"), model, pool, schedule)
        self._show(self._measured, goodput.get("measured"), model, pool)
        self._show(self._predicted_step, evidence.get("step_s", {}).get("predicted"), model, pool)
        self._show(self._measured_step, evidence.get("step_s", {}).get("measured"), model, pool)
        canary: dict[str, Any] = evidence.get("canary", {})
        for measure in ("goodput", "itl"):
            for bound, value in (canary.get(f"{measure}_gain_ratio") or {}).items():
                self._canary.labels(model, measure, bound).set(value)
        for name, found in evidence.get("classes", {}).items():
            for metric, key in ((self._acceptance, "acceptance"), (self._survival, "survival")):
                for index, value in enumerate(found.get(key) or ()):
                    self._show(metric, value, model, pool, name, str(index + 1))

    def _show(self, metric: Gauge, value: float | None, model: str, pool: str, *labels: str) -> None:
        """Set a gauge of a pool, which stays until a tick tells nothing of the pool; NaN stands for unknown."""
        metric.labels(model, pool, *labels).set(float("nan") if value is None else value)
        self._series.setdefault((model, pool), set()).add((metric, (model, pool, *labels)))
        self._told.add((model, pool))

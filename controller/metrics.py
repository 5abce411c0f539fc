"""The controller's Prometheus metrics: one gauge for each variable of a decision, one counter by reason.

Labels are models, pools and classes that the controller itself publishes; no value comes from a client.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from specpilot.controller.law.context import TickResult
from specpilot.controller.law.reason import Reason
from specpilot.controller.recording.gain_figures import gain_ratio_of
from specpilot.policy.gain import MEASURES, DailyGain
from specpilot.policy.names import PoolKey
from specpilot.policy.store import StoreMemory

PREFIX = "specpilot_controller_"
_POOL = ("model_name", "pool")
_BAND = (*_POOL, "band")


class RedisMemory(Collector):
    """Two gauges that are shown only while their values are known.

    `Gauge` without labels would show 0 before its first value.
    """

    def __init__(self) -> None:
        """Begin without values."""
        self.known: StoreMemory | None = None

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        used = GaugeMetricFamily(PREFIX + "redis_memory_used_bytes", "Memory that Redis uses")
        most = GaugeMetricFamily(PREFIX + "redis_memory_max_bytes", "Memory that Redis may use; 0 is no limit")
        if self.known is not None:
            used.add_metric((), self.known.used_bytes)
            most.add_metric((), self.known.max_bytes)
        yield from (used, most)


class ControllerMetrics:
    """The registry of one controller. `render` gives the page of `/metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(PREFIX + name, text, labels, registry=self.registry)

        self._acceptance = gauge("acceptance_ratio", "Conditional acceptance a_i", (*_BAND, "position"))
        self._survival = gauge("survival_ratio", "Survival S_i", (*_BAND, "position"))
        self._k = gauge("k", "Mean K by class, measured", (*_POOL, "traffic_class"))
        self._measured = gauge(
            "measured_weighted_throughput_tokens_per_second", "Measured, without the time of prefill", _POOL
        )
        self._measured_step = gauge("measured_step_seconds", "Measured mean step, without the time of prefill", _POOL)
        self._probe = gauge("probe_ratio", "Share of an engine's time that pays for probes, as published", _POOL)
        self._control_group = gauge(
            "control_group_gain_ratio", "What adaptive K gains over the static K",
            (*_POOL, "measure", "decides", "bound"),
        )  # fmt: skip
        self._daily = gauge(
            "control_group_day_gain_ratio", "What adaptive K gained over the static K today (UTC)",
            (*_POOL, "measure", "bound"),
        )  # fmt: skip
        self._canary = gauge(
            "canary_gain_ratio", "Gain of the running or latest canary over the present policy",
            ("model_name", "measure", "bound"),
        )  # fmt: skip
        of_goal = (*_POOL, "traffic_class", "measure")
        self._slo = {
            "goal_ms": gauge("slo_goal_milliseconds", "The latency goal of a class", of_goal),
            "target_ratio": gauge("slo_target_ratio", "Share of requests that must meet a percentile", of_goal),
            "budget_left_ratio": gauge("slo_budget_left_ratio", "Error budget left of one day", of_goal),
            "margin": gauge("slo_margin_ratio", "Bound on the predicted mean over the goal", of_goal),
            "forecast_error_ratio": gauge(
                "slo_forecast_error_ratio", "Measured over predicted mean TPOT of an hour, less 1", of_goal
            ),
            "is_unreachable": gauge("slo_unreachable", "1 while no K keeps the goal", of_goal),
        }
        self._slo_by_window = {
            "attained_ratio": gauge("slo_attained_ratio", "Share of requests within the goal", (*of_goal, "window")),
            "mean_ms_by_window": gauge("slo_mean_milliseconds", "Measured mean of the requests", (*of_goal, "window")),
            "requests_by_window": gauge("slo_requests", "Requests that ended", (*of_goal, "window")),
        }
        self._publishing = gauge(
            "publishing", "1 while schedules are published, 0 without an engine to speculate", _POOL
        )
        self._version = gauge("schedule_version", "Version published last", _POOL)
        self._lease = gauge("lease_held", "1 while this controller leads")
        self._store = gauge("store_up", "1 while Redis answers")
        self._memory = RedisMemory()
        self.registry.register(self._memory)
        self._age = gauge(
            "scrape_age_seconds",
            "Age of the last successful scrape; without one, since the engine is known",
            ("engine_id",),
        )
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
        self._versions: dict[PoolKey, int] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._series: dict[tuple[Gauge | Counter, tuple[str, ...]], bool] = {}  # whether this tick has set the gauge

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self.registry)

    def show_tick(
        self,
        duration_s: float,
        *,
        leads: bool,
        store_up: bool,
        ages_s: Iterable[tuple[str, float]],
        memory: StoreMemory | None,
    ) -> None:
        """Show the state after one tick."""
        self._ticks.observe(duration_s)
        self._lease.set(leads)
        self._store.set(store_up)
        self._memory.known = memory
        for (metric, labels), is_shown in list(self._series.items()):
            if not is_shown:
                metric.remove(*labels)
                del self._series[metric, labels]
        self._series = dict.fromkeys(self._series, False)
        self._age.clear()
        for engine_id, age_s in ages_s:
            self._age.labels(engine_id).set(age_s)

    def count_error(self) -> None:
        """Count a tick that failed for an unforeseen reason."""
        self._errors.inc()

    def show_version(self, model: str, pool: str, version: int) -> None:
        """Show the version that was published last."""
        self._versions[model, pool] = version
        self._show(self._version, version, model, pool)

    def show_day(self, model: str, pool: str, today: DailyGain) -> None:
        """Show today's gain of adaptive K; nothing while its windows are too few."""
        for measure in MEASURES:
            for bound, value in (gain_ratio_of(today, measure) or {}).items():
                self._show(self._daily, value, model, pool, measure, bound)

    def show_decision(self, model: str, pool: str, result: TickResult) -> None:
        """Show the decision for one pool. A value that is unknown in this tick is removed from the page."""
        for each in Reason:  # a counter that appears with its first increase hides this increase from `rate()`
            self._decisions.labels(model, pool, each.value).inc(each is result.reason)
            self._series[self._decisions, (model, pool, each.value)] = True
        self._show(self._version, self._versions.get((model, pool)), model, pool)
        self._show(self._publishing, result.guidance is not None, model, pool)
        self._show(self._probe, result.guidance.probe_ratio if result.guidance else None, model, pool)
        for name, value in result.k.items():
            self._show(self._k, value, model, pool, name)
        evidence = result.evidence
        self._show(self._measured, evidence.get("throughput"), model, pool)
        self._show(self._measured_step, evidence.get("step_s"), model, pool)
        self._show_goals(model, pool, evidence.get("slo") or {})
        self._show_control_group(model, pool, evidence.get("control_group") or {})
        canary: dict[str, Any] = evidence.get("canary") or self._ended.get(model, {})
        if canary.get("outcome"):
            self._ended[model] = canary
        for measure in MEASURES:
            for bound, value in (canary.get(f"{measure}_gain_ratio") or {}).items():
                self._show(self._canary, value, model, measure, bound)
        for band, facts in evidence.get("bands", {}).items():
            for metric, key in ((self._acceptance, "acceptance"), (self._survival, "survival")):
                for index, value in enumerate(facts.get(key) or ()):
                    self._show(metric, value, model, pool, band, str(index + 1))

    def _show_goals(self, model: str, pool: str, goals: Mapping[str, Any]) -> None:
        for name, measures in goals.items():
            for measure, facts in measures.items():
                for key, metric in self._slo.items():
                    self._show(metric, facts.get(key), model, pool, name, measure)
                for key, metric in self._slo_by_window.items():
                    for window, value in facts[key].items():
                        self._show(metric, value, model, pool, name, measure, window)

    def _show_control_group(self, model: str, pool: str, evidence: Mapping[str, Any]) -> None:
        if evidence.get("is_paused"):
            return  # the numbers in the evidence are from an earlier state
        for measure in MEASURES:
            decides = "true" if measure == evidence.get("measure") else "false"
            for bound, value in (evidence.get(f"{measure}_gain_ratio") or {}).items():
                self._show(self._control_group, value, model, pool, measure, decides, bound)

    def _show(self, metric: Gauge, value: float | None, *labels: str) -> None:
        """Set a gauge if its value is known. A gauge that a tick does not set is removed from the page."""
        if value is not None:
            metric.labels(*labels).set(value)
            self._series[metric, labels] = True

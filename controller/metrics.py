"""The controller's Prometheus metrics: one gauge for each variable of a decision, one counter by reason.

Labels are models, pools and classes that the controller itself publishes; no value comes from a client.

`/metrics` shows the last whole tick. A value that is unknown in a tick is absent from its page.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from specpilot.controller.decision.context import TickResult
from specpilot.controller.decision.reason import Reason
from specpilot.controller.recording.gain_figures import gain_ratio_of
from specpilot.policy.gain import MEASURES, DailyGain
from specpilot.policy.store import StoreMemory

PREFIX = "specpilot_controller_"
_POOL = ("model_name", "pool")
_BAND = (*_POOL, "band")
_GOAL = (*_POOL, "traffic_class", "measure")
_WINDOW = (*_GOAL, "window")
_GAIN = ("measure", "bound")
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "acceptance_ratio": ("Conditional acceptance a_i", (*_BAND, "position")),
    "survival_ratio": ("Survival S_i", (*_BAND, "position")),
    "k": ("Mean K by class, measured", (*_POOL, "traffic_class")),
    "measured_weighted_throughput_tokens_per_second": ("Measured, without the time of prefill", _POOL),
    "measured_step_seconds": ("Measured mean step, without the time of prefill", _POOL),
    "probe_ratio": ("Share of an engine's time that pays for probes, as published", _POOL),
    "control_group_gain_ratio": (
        "What adaptive K gains over the static K",
        (*_POOL, "measure", "decides", "bound"),
    ),
    "control_group_day_gain_ratio": ("What adaptive K gained over the static K today (UTC)", (*_POOL, *_GAIN)),
    "canary_gain_ratio": ("Gain of the running or latest canary over the present policy", ("model_name", *_GAIN)),
    "slo_goal_milliseconds": ("The latency goal of a class", _GOAL),
    "slo_target_ratio": ("Share of requests that must meet a percentile", _GOAL),
    "slo_budget_left_ratio": ("Error budget left of one day", _GOAL),
    "slo_margin_ratio": ("Bound on the predicted mean over the goal", _GOAL),
    "slo_forecast_error_ratio": ("Measured over predicted mean TPOT of an hour, less 1", _GOAL),
    "slo_unreachable": ("1 while no K keeps the goal", _GOAL),
    "slo_attained_ratio": ("Share of requests within the goal", _WINDOW),
    "slo_mean_milliseconds": ("Measured mean of the requests", _WINDOW),
    "slo_requests": ("Requests that ended", _WINDOW),
    "publishing": ("1 while schedules are published, 0 without an engine to speculate", _POOL),
    "schedule_version": ("Version published last", _POOL),
    "lease_held": ("1 while this controller leads", ()),
    "store_up": ("1 while Redis answers", ()),
    "redis_memory_used_bytes": ("Memory that Redis uses", ()),
    "redis_memory_max_bytes": ("Memory that Redis may use; 0 is no limit", ()),
    "scrape_age_seconds": ("Age of the last successful scrape; without one, since the engine is known", ("engine_id",)),
}
"""The text and the labels of each gauge."""

_OF_GOAL = {
    "goal_ms": "slo_goal_milliseconds",
    "target_ratio": "slo_target_ratio",
    "budget_left_ratio": "slo_budget_left_ratio",
    "margin": "slo_margin_ratio",
    "forecast_error_ratio": "slo_forecast_error_ratio",
    "is_unreachable": "slo_unreachable",
}
_OF_GOAL_BY_WINDOW = {
    "attained_ratio": "slo_attained_ratio",
    "mean_ms_by_window": "slo_mean_milliseconds",
    "requests_by_window": "slo_requests",
}
"""The gauges of the figures in the evidence of a latency goal."""

_DECISIONS = "decisions"


class ControllerMetrics(Collector):
    """The registry of one controller. `render` gives the page of `/metrics`."""

    def __init__(self) -> None:
        """Begin with the page of a controller that has not ticked."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._ticks = Histogram(
            PREFIX + "tick_seconds", "Duration of one tick", registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )  # fmt: skip
        self._errors = Counter(
            PREFIX + "tick_errors_total", "Ticks, or pools in a tick, that failed unexpectedly", registry=self.registry
        )
        self._ended: dict[str, dict[str, Any]] = {}
        # The values of each metric by its labels: of the last whole tick, and of the present one so far.
        self._shown: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        self._shown |= {"lease_held": {(): 0.0}, "store_up": {(): 0.0}}
        self._next: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)

    def render(self) -> bytes:
        """Return the page."""
        return generate_latest(self.registry)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        shown = self._shown
        families: list[GaugeMetricFamily | CounterMetricFamily] = [
            CounterMetricFamily(PREFIX + _DECISIONS, "Decisions by reason", labels=(*_POOL, "reason"))
        ]
        families += [GaugeMetricFamily(PREFIX + name, text, labels=labels) for name, (text, labels) in _GAUGES.items()]
        for family in families:
            for labels, value in shown[family.name.removeprefix(PREFIX)].items():
                family.add_metric(labels, value)
            yield family

    def show_tick(
        self,
        duration_s: float,
        *,
        leads: bool,
        store_up: bool,
        ages_s: Iterable[tuple[str, float]],
        memory: StoreMemory | None,
    ) -> None:
        """Show the state after one tick, with what was shown of its decisions."""
        self._ticks.observe(duration_s)
        self._show("lease_held", leads)
        self._show("store_up", store_up)
        if memory is not None:
            self._show("redis_memory_used_bytes", memory.used_bytes)
            self._show("redis_memory_max_bytes", memory.max_bytes)
        for engine_id, age_s in ages_s:
            self._show("scrape_age_seconds", age_s, engine_id)
        self._shown, self._next = self._next, defaultdict(dict)

    def count_error(self) -> None:
        """Count a tick that failed for an unforeseen reason."""
        self._errors.inc()

    def show_version(self, model: str, pool: str, version: int) -> None:
        """Show the version that was published last."""
        self._show("schedule_version", version, model, pool)

    def show_day(self, model: str, pool: str, today: DailyGain) -> None:
        """Show today's gain of adaptive K; nothing while its windows are too few."""
        for measure in MEASURES:
            for bound, value in (gain_ratio_of(today, measure) or {}).items():
                self._show("control_group_day_gain_ratio", value, model, pool, measure, bound)

    def show_decision(self, model: str, pool: str, result: TickResult) -> None:
        """Show the decision for one pool."""
        for reason in Reason:  # a counter that appears with its first increase hides this increase from `rate()`
            count = self._shown[_DECISIONS].get((model, pool, reason.value), 0)
            self._show(_DECISIONS, count + (reason is result.reason), model, pool, reason.value)
        self._show("schedule_version", self._shown["schedule_version"].get((model, pool)), model, pool)
        self._show("publishing", result.guidance is not None, model, pool)
        self._show("probe_ratio", result.guidance.probe_ratio if result.guidance else None, model, pool)
        for name, value in result.k.items():
            self._show("k", value, model, pool, name)
        evidence = result.evidence
        self._show("measured_weighted_throughput_tokens_per_second", evidence.get("throughput"), model, pool)
        self._show("measured_step_seconds", evidence.get("step_s"), model, pool)
        self._show_goals(model, pool, evidence.get("slo") or {})
        self._show_control_group(model, pool, evidence.get("control_group") or {})
        canary: dict[str, Any] = evidence.get("canary") or self._ended.get(model, {})
        if canary.get("outcome"):
            self._ended[model] = canary
        for measure in MEASURES:
            for bound, value in (canary.get(f"{measure}_gain_ratio") or {}).items():
                self._show("canary_gain_ratio", value, model, measure, bound)
        for band, facts in evidence.get("bands", {}).items():
            for key in ("acceptance", "survival"):
                for index, value in enumerate(facts.get(key) or ()):
                    self._show(f"{key}_ratio", value, model, pool, band, str(index + 1))

    def _show_goals(self, model: str, pool: str, goals: Mapping[str, Any]) -> None:
        for name, measures in goals.items():
            for measure, facts in measures.items():
                for key, gauge in _OF_GOAL.items():
                    self._show(gauge, facts.get(key), model, pool, name, measure)
                for key, gauge in _OF_GOAL_BY_WINDOW.items():
                    for window, value in facts[key].items():
                        self._show(gauge, value, model, pool, name, measure, window)

    def _show_control_group(self, model: str, pool: str, evidence: Mapping[str, Any]) -> None:
        if evidence.get("is_paused"):
            return  # the numbers in the evidence are from an earlier state
        for measure in MEASURES:
            decides = "true" if measure == evidence.get("measure") else "false"
            for bound, value in (evidence.get(f"{measure}_gain_ratio") or {}).items():
                self._show("control_group_gain_ratio", value, model, pool, measure, decides, bound)

    def _show(self, name: str, value: float | None, *labels: str) -> None:
        """Show a value in the page of the present tick, unless it is unknown."""
        if value is not None:
            self._next[name][labels] = value

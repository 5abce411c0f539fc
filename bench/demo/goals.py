"""Requests within their latency goals in the phases of a trace, by arm. Pure.

The engines count the requests that ended by the goals of the policy in force (`specpilot_engine_slo_requests_total`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from specpilot.bench.demo.system import Reading


class Met(NamedTuple):
    """Requests that ended within a goal, and beyond it, in so many seconds."""

    within: float
    beyond: float
    seconds: float

    @property
    def share(self) -> float | None:
        """The share within the goal; `None`: no request ended."""
        ended = self.within + self.beyond
        return self.within / ended if ended else None

    def __add__(self, other: object) -> "Met":
        assert isinstance(other, Met)
        return Met(*(one + another for one, another in zip(self, other, strict=True)))


Goals = Mapping[tuple[str, str], Met]
"""By class and measure."""


def met(readings: Sequence[Reading]) -> dict[tuple[str, str], Met]:
    """Return what the requests of a phase met, between its first reading and its last one."""
    first, last = readings[0], readings[-1]
    return {
        goal: Met(
            within - first.within_goal.get(goal, 0.0),
            last.beyond_goal.get(goal, 0.0) - first.beyond_goal.get(goal, 0.0),
            last.at - first.at,
        )
        for goal, within in last.within_goal.items()
    }


def added(plays: Sequence[Goals]) -> dict[tuple[str, str], Met]:
    """Return the sums over several plays of a phase."""
    sums: dict[tuple[str, str], Met] = {}
    for play in plays:
        for goal, item in play.items():
            sums[goal] = sums.get(goal, Met(0.0, 0.0, 0.0)) + item
    return sums


def goodput(goals: Goals, measure: str) -> float:
    """Return the requests per second that ended within their goal on `measure`."""
    return sum(item.within / item.seconds for (_, name), item in goals.items() if name == measure)


def missed(goals: Goals, measure: str) -> float:
    """Return the share of the requests with a goal on `measure` that missed it; 0 if none ended."""
    items = [item for (_, name), item in goals.items() if name == measure]
    return sum(item.beyond for item in items) / (sum(item.within + item.beyond for item in items) or 1.0)


def table(phases: Mapping[str, Mapping[str, Goals]]) -> str:
    """Return the goodput of each phase and arm by measure, and the shares within the goal by class."""
    rows = []
    for measure in sorted({name for arms in phases.values() for goals in arms.values() for _, name in goals}):
        for phase, arms in phases.items():
            rows.append(f"\n{phase}: requests per second within their goal on {measure}")
            for arm, goals in arms.items():
                shares = [
                    f"{name} {item.share:.2f}"
                    for (name, of), item in sorted(goals.items())
                    if of == measure and item.share is not None
                ]
                rows.append(f"{arm:<18}{goodput(goals, measure):10.2f}   share within: {', '.join(shares)}")
    return "\n".join(rows)


def summary(phases: Mapping[str, Mapping[str, Goals]], adaptive: str) -> dict[str, dict[str, object]]:
    """Return for each measure and phase the adaptive arm beside the single K with the most goodput."""
    figures: dict[str, dict[str, object]] = {}
    for phase, arms in phases.items():
        for measure in sorted({name for goals in arms.values() for _, name in goals}):
            rates = {arm: goodput(goals, measure) for arm, goals in arms.items()}
            best = max((arm for arm in rates if arm != adaptive), key=lambda arm: rates[arm])
            figures.setdefault(measure, {})[phase] = {
                "best_single_k": best,
                "goodput_vs_best_single_k": round(rates[adaptive] / rates[best], 3) if rates[best] else None,
                "missed": round(missed(arms[adaptive], measure), 3),
                "missed_by_best_single_k": round(missed(arms[best], measure), 3),
            }
    return figures

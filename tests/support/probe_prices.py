"""A planner with the prices of probes that the demo pair has on a CPU."""

from functools import partial

from specpilot.engine_adapter.law.probe_prices import ProbePrices
from specpilot.engine_adapter.plan import planner

DEMO = ProbePrices(drafting=1.7, verifying=0.8, position=0.004, token=0.015, beside_prompt=0.8)
"""A pass of the drafter and the machinery of the step after it take 4.5 and 3.8 of 5.0 ms, a position 0.026 of 6.5."""

Planner = partial(planner.Planner, prices=DEMO)

OFTEN = 40
"""More steps than pass between two probes of one request, if the budget allows them."""

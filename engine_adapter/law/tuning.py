"""The engine law's constants, each with its unit and what it trades."""

CELL_STEPS = 400
"""Steps after which a cell of like steps follows new measurements."""

KNOWN_STEPS = 30
"""Steps of a cell that tell what its steps take well enough to tell the slowdown factor by them."""

CELLS = 400
"""Cells that are remembered; bounds the time of a fit: some milliseconds a second, beside the scheduler's thread."""

SLOWDOWN_SHARE = 0.05
"""What a step adds to the logarithm of the slowdown factor: a memory of 20 steps."""

SLOWDOWN_KEPT = 0.99
"""What the logarithm of the slowdown factor keeps of itself at each step: a memory of 100 steps, so that it returns
to 1 where cells do not say otherwise. What makes only some steps slower, such as a slow host on a GPU, raised it for
good: on the plants of the H200 to 1.9 within 80 s, and loads that were not run then looked twice as dear (on the
trace `h200` this memory gains 5 %)."""

PAUSE = 0.5
"""Logarithm of a step's error beyond which it is not averaged into its cell: a pause is no cost."""

REFRESH_S = 1.0
"""Seconds between two fits. Prices change slowly; less follows a new load sooner, and costs a fit each time."""

LEAST_STEPS = 20
"""Steps that are measured before the engine chooses; until then the static K holds."""

LOAD_SHARE = 0.02
"""What a step adds to the mean share of steps that prefill, and to their mean context: a memory of 50 steps."""

LEAST_DRAFTED_RATIO = 0.05
"""Share of the decodes drafted for from which on what is caught up counts as the price of leaving out. Below, it is
for probes, which have a budget of their own."""

LEFT_KEPT = 0.9995
"""What the price of leaving out keeps of itself at each such step: a memory of 2,000."""

UNPROBED_RATIO = 0.5
"""Share of the decodes of requests without a verified draft from which on the bands of the others say nothing of the
whole: then each known request gets K as if all were like it, and the others as if they were alone."""

MOVED_RATIO = 0.125
"""Share of the decodes that may have joined a group, or left the batch, since K was chosen, before K is chosen anew on
the scheduler's thread. More takes less time and follows a changed batch later."""

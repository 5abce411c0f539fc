"""The plan's constants, each with its unit and what it trades."""

ROWS_PER_STEP = 1024
"""Rows that catch up in one step where K rises: a short prompt's worth of time, some 27 ms with the demo pair. More
lets requests be drafted for sooner, fewer keeps steps even."""

PROBE_AFTER = 16
"""Steps without a verified draft after which a request at K = 0 is due for a probe. In closed-loop replay a turn in the
text is so noticed in 10 to 14 steps; more often costs more than it finds."""

SHARED_AFTER = 32
"""Steps without any draft after which requests share a step of probes: such a step costs a pass of the drafter and
vLLM's whole machinery of speculation, for however many."""

PROBE_POSITIONS = 8
"""Positions of the drafter's that take as long as one decode: 26 of some 230 microseconds with the demo pair and 32
running, where the drafter has a third of the target's layers. Fewer layers make probes cheaper than `probe_ratio`."""

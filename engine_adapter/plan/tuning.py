"""The plan's constants, each with its unit and what it trades."""

ROWS_PER_STEP = 1024
"""Rows that catch up in one step where K rises: a short prompt's worth of time, some 27 ms with the demo pair. More
lets requests be drafted for sooner, fewer keeps steps even."""

PROBE_AFTER = 16
"""Steps without a verified draft after which a request at K = 0 is due for a probe. In closed-loop replay a turn in the
text is so noticed in 10 to 14 steps; more often costs more than it finds."""

POSITION_STEP = 0.004
"""What a position of the drafter's takes, in steps that draft nothing: 0.026 of some 6.5 ms with the demo pair and 8 to
12 running. The drafter has a third of the target's layers there; fewer make probes cheaper than `probe_ratio`."""

DRAFTING_STEP = 1.0
"""What a step that drafts takes longer than one that does not, in steps of the latter, before any position: a pass of
the drafter and vLLM's machinery of speculation. With the demo pair 12 ms in place of 6, with 1 to 8 running."""

VERIFYING_STEP = 0.5
"""The part of that which a step takes that only verifies: an estimate, as the drafter's pass is the other half."""

PROMPT_SHARE = 0.75
"""The part of the probes' budget that prompts may take in steps that draft nothing. A prompt's probe costs less and
tells about all requests of its kind; but text that turns while it is written is only found by the others."""

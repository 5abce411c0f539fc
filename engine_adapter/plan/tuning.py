"""The plan's constants, each with its unit and what it trades."""

ROWS_PER_STEP = 1024
"""Rows that catch up in one step where K rises: a short prompt's worth of time, some 27 ms with the demo pair. More
lets requests be drafted for sooner, fewer keeps steps even."""

PROBE_AFTER = 16
"""Steps without a verified draft after which a request at K = 0 is due for a probe. In closed-loop replay a turn in the
text is so noticed in 10 to 14 steps; more often costs more than it finds."""

FIRST_DRAFT_ROWS = 64
"""Rows with which a request's first draft may still be made outside of the probes' budget. It is made once, and takes a
quarter of a step at most. More finds requests that began while nothing was drafted, fewer costs less where all are hard
to draft for. On the plant, with 3 of 12 or 8 of 16 requests predictable, replies of 150 tokens and no labels, these
drafts deliver 1.11 to 1.19 times as much as with all within the budget, with 16, 64 and 1,000 rows alike; with labels,
or where all are hard to draft for, 0.97 to 1.00 (docs/decisions/0021)."""

PARALLEL_PROBE = 4
"""How deep a probe is where nothing else drafts and the drafter drafts in parallel. Deeper tells sooner who is
predictable, and verifies more for those who are not. From 4 to 7 the plant shows no difference."""

SEQUENTIAL_PROBE = 2
"""The same where the drafter does a pass for each token."""

PROMPT_SHARE = 0.75
"""The part of the probes' budget that prompts may take in steps that draft nothing. A prompt's probe costs less and
tells about all requests of its kind; but text that turns while it is written is only found by the others."""

HELD_PROMPT = 48
"""Tokens of a prompt, at most, that wait as rows where nothing is drafted, instead of a pass of the drafter for them
alone. That pass takes 2 ms of a GPU's step of 5 ms (an 8B model on an H200), of which the tokens are next to nothing.
With those of `HELD_STEPS` the rows still allow a first draft (`FIRST_DRAFT_ROWS`)."""

HELD_TOGETHER = 8
"""Prompts that go through the drafter in one pass. More costs less and leaves drafts of these requests to later."""

HELD_STEPS = 16
"""Steps after which they do so in any case, so that blocks of the prefix cache lack their draft KV for no longer."""

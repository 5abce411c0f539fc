"""The constants of what runs in vLLM's workers, each with its unit and what it trades."""

STEPS_TOGETHER = 32
"""For how many steps a thing is done at once, at most."""

ROWS_TOGETHER = 1024
"""For how many rows, at most, but for those of one step. What is held is beyond the memory taken: 24 MiB for a hidden
size of 4,096 in bfloat16."""

TAKEN_IN_TOGETHER = 4096
"""Positions of a step that go through the drafter in one pass without being drafted from. What a pass gathers is beyond
what vLLM measured: 96 MiB for a hidden size of 4,096 in bfloat16. Fewer would be more passes for a long prompt."""

SPARE_ROWS = 8
"""The part of the rows' memory, one in so many, that is set aside beside it: with less, rows move more often."""

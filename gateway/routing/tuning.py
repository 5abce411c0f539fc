"""The constants of the choice of an engine, each with its unit and what it trades; by module."""

from typing import Final

# balance.py

BOUND_RATIO: Final = 1.5
"""How many times as busy as the least busy a preferred engine may be."""

BOUND_TOKENS: Final = 8192.0
"""How many tokens of work busier than that it may be besides: more keeps caches warm, and queues longer."""

# outlier_detection.py

FAILURES_ALLOWED: Final = 5
"""Failures in a row, connecting aside, before an ejection: fewer eject an engine for one bad request."""

SOURCES_MAX: Final = 16
"""Different requests of a row of failures that are told apart: two would do."""

PROBES_ALLOWED: Final = 2
"""Probes in a row that may time out before an ejection: one may have met a busy moment."""

EJECTED_MIN_S: Final = 0.5
"""Seconds of the first ejection: how soon an engine that restarts is tried again."""

EJECTED_MAX_S: Final = 30.0
"""Seconds of the longest ejection, doubling up to it: how late a restart is noticed, against probes of the dead."""

RAMP_S: Final = 10.0
"""Seconds in which a returning engine's share of load grows to all: cold caches against the others' load."""

RAMP_FLOOR: Final = 0.1
"""The share of load (a ratio) with which it begins."""

# prefix.py

LEAST_CHARS: Final = 1024
"""A shorter common beginning is worth no preference: some 250 tokens, some milliseconds of prefill."""

BLOCK_CHARS: Final = 1024
"""Characters from one point to the next: fewer find longer common beginnings, for a hash and an entry each."""

READ_CHARS: Final = 8192
"""Characters of a prompt that are read in full: the cost of a choice is bounded by them."""

TAIL_CHARS: Final = 64
"""Characters at the end of a text beyond that which tell it from others of its length."""

TEXTS_MAX: Final = 32
"""Texts of a prompt (messages, or parts of one) that are looked at."""

PREFIXES_MAX: Final = 65_536
"""Points that are remembered: some 10 MB, against prompts whose engine is forgotten."""

HOLDERS_MAX: Final = 4
"""Engines that are remembered for a point, the latest first."""

# retry_budget.py

SAVED_S: Final = 60.0
"""Seconds over which earned retries can be saved up."""

"""The constants of what is told, each with its unit and what it trades; by module."""

from typing import Final

# access_log.py

BACKLOG: Final = 64
"""Batches, of 0.1 s each, that may wait for a slow reader: memory against lost lines."""

# engine_counters.py

ENGINES_REMEMBERED: Final = 1024
"""Engines whose last reading is kept, those that left included; the one read longest ago is forgotten first."""

# metrics.py

CELL_LIMIT: Final = 1024
"""More pairs of model and class than any fleet has; what comes after counts under `other`."""

KEY_LIMIT: Final = 512
"""API keys that one process counts apart; those that come after count under `other`."""

# otel.py

QUEUE_SPANS: Final = 2048
"""Spans that may wait for the collector, the SDK's own default: memory against lost spans."""

CLOSE_S: Final = 3.0
"""Seconds that the last spans get at the end."""

# scrape.py

RESTS: Final = 4.0
"""Times as long as an exposition took before the next one begins: a fifth of a core at most goes into metrics."""

REST_LIMIT_S: Final = 1.0
"""Seconds of such a rest at most: an exposition that waited for a hung engine took no time of this process."""

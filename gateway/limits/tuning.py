"""The constants of limits, each with its unit and what it trades; by module."""

from typing import Final

# admission.py

RETRY_AFTER_MIN_S: Final = 1.0
"""Least seconds that a refused request is told to wait; `Retry-After` has whole ones."""

# rate_limit.py

DEMAND_S: Final = 5.0
"""Seconds over which demand is averaged: less follows bursts, and moves shares more often."""

DEMAND_MAX: Final = 2.0
"""The most that one replica may state, in limits per minute: what a flood at one replica can take from the others."""

PRIOR: Final = 0.02
"""Demand that every replica counts with: what one that was not asked yet has of a limit, taken from those that were."""

EXCHANGE_S: Final = 1.0
"""Seconds between two exchanges of statements: 1.7 % of a limit that moves is let through twice (`rate_limit`)."""

PRESENCE_S: Final = 5.0
"""Seconds after which a silent replica's share goes to the others; what it lets through meanwhile comes on top."""

PLACE_RETRY_S: Final = 1.0
"""Seconds that a client is told to wait for a place: nobody knows when a request ends, and places move every second."""

IDLE_DEMAND: Final = 0.00001
"""Below this a demand is not stated: the last request was then a minute ago, and its bucket is full."""

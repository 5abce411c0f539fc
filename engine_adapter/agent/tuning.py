"""The agent's constants: how often its threads do what, in seconds."""

HEARTBEAT_S = 1.0
"""Between two heartbeats of an engine: each is one write to Redis."""

TTL_S = 4.0
"""After which an engine that fell silent is off the list: three heartbeats may be lost."""

POLL_S = 0.5
"""Between two looks for a schedule where nothing is announced, the net under announcements."""

RETRY_S = 0.5
"""Between two tries to reach a store that does not answer."""

EXPORT_S = 0.25
"""Between two exports of the evidence: a controller that scrapes every second misses at most a quarter of it."""

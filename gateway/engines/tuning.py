"""The constants of what is known of engines, each with its unit and what it trades; by module."""

from typing import Final

# kubernetes_watch.py

WATCH_S: Final = 60
"""Seconds after which the API server ends a watch: how long a connection that died in silence may go unnoticed."""

LIST_TIMEOUT_S: Final = 10.0
"""Seconds that the API server gets to list a service: for how long a hung one delays news."""

PAUSE_S: Final = 0.5
"""Seconds before a watch that broke begins again, at first."""

PAUSE_LIMIT_S: Final = 15.0
"""The longest such pause, doubling up to it: news of engines against load on an API server in trouble."""

LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer event is none: a slice has at most 1,000 endpoints, of some hundred bytes each."""

# probe.py

PROBE_CHECK_S: Final = 0.25
"""Seconds between two looks at who is due, and so between two probes of an ejected engine at least."""

PROBE_UNKNOWN_S: Final = 1.0
"""Seconds between probes of an engine that has not answered: how soon a new one serves."""

PROBE_S: Final = 3.0
"""Seconds between probes of an engine that answers: with `PROBE_TIMEOUT_S`, how soon a hung engine is ejected."""

MODELS_BYTES: Final = 4 * 1024 * 1024
"""A longer list of models is no list of models."""

PROBE_TIMEOUT_S: Final = 3.0
"""Seconds that an engine gets to answer a probe: less ejects a busy one, more lets a hung one serve on."""

STOOD_STILL_S: Final = 0.25
"""A time-out that comes so much too late says more of this process than of the engine."""

# read_counters.py

TIMEOUT_S: Final = 2.0
"""Seconds that an engine gets to answer: how long a hung one can hold up `/metrics`, until it is ejected."""

METRICS_BYTES: Final = 16 * 1024 * 1024
"""A longer exposition is left unread: vLLM's takes some 100 kB a model."""

# redis_watch.py

RETRY_S: Final = 0.5
"""Seconds before Redis is tried again."""

# snapshot.py

SETTLE_S: Final = 15.0
"""Seconds after Redis came back in which nothing missing is dropped: time for its writers to write again."""

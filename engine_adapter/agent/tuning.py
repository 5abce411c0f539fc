"""The agent's constants: how often its threads do what, in seconds."""

HEARTBEAT_S = 1.0
"""Between two heartbeats of an engine: each is one write to Redis."""

TTL_S = 4.0
"""After which an engine that fell silent is off the list: three heartbeats may be lost."""

POLL_S = 0.5
"""Between two looks at what is due where nothing is announced: a heartbeat, or that the engine drains."""

LOOK_S = 5.0
"""Seconds after which a schedule is read although none was announced, the net under announcements. As long as the
leader takes to renew it, so that each version crosses the wire once: a pool's schedule takes 1 to 5 kB."""

RETRY_S = 0.5
"""Between two tries to reach a store that does not answer."""

STALLED_S = 60.0
"""Seconds without the end of a step under way after which an engine says that it is stalled. The longest steps, whole
chunks of prompts on a slow processor, take some seconds."""

EXPORT_S = 0.25
"""Between two exports of the evidence: a controller that scrapes every second misses at most a quarter of it."""

UNCHANGED_EXPORTS = 20
"""Exports in a row that leave a page alone of which only the schedule's age is new: an idle engine writes every 5 s, as
each write is a whole page for the disk."""

CALIBRATION_STEPS = 20
"""Steps that are measured of each setting before traffic: a mean good to some per cent, in a fifth of a second."""

CALIBRATION_REQUESTS = 256
"""Requests that a calibration runs at once at most: beyond, step times are extrapolated until traffic is there."""

CALIBRATION_PROMPT = 16
"""Tokens of a calibration's prompts."""

CALIBRATION_SETTING_S = 10.0
"""Seconds that one setting may take: where 20 steps take longer, the rest is learned from traffic."""

CALIBRATION_ANSWER_S = 5.0
"""Seconds without a step after which a calibration is given up."""

CALIBRATION_START_S = 120.0
"""Seconds in which the engine's own address must answer, counted from when its model is loaded."""

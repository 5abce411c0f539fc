"""The names under which an engine reports its evidence: the adapter exports them, the controller reads them.

All counters. `model_name` is on each, as on vLLM's own metrics. Positions count from 1.

A *decode-only* step verifies tokens for running decodes and prefills nothing; only these fit the cost model.
Such steps are counted in cells of (running decodes, verified tokens, drafter width), the first two rounded to
a coarse grid to bound the number of series. The sums kept beside the counts give each cell's exact means, so
a model that is linear within a cell loses nothing by the rounding. Decode-only steps in which the drafter also read
positions to catch up are counted apart, by powers of two of the decodes and by width: they are few, and no two alike.
"""

PREFIX = "specpilot_engine_"

TRIALS = PREFIX + "trials_total"  # traffic_class, position
ACCEPTS = PREFIX + "accepts_total"  # traffic_class, position
DRAFTS = PREFIX + "drafts_total"  # traffic_class, k: one per decode of a request per step, K = 0 included
PROBES = PREFIX + "probes_total"  # traffic_class
DECODE_TOKENS = PREFIX + "decode_tokens_total"  # traffic_class: tokens delivered by decodes

STEPS = PREFIX + "steps_total"  # decodes, verified, width
STEP_SECONDS = PREFIX + "step_seconds_total"  # decodes, verified, width
STEP_DECODES = PREFIX + "step_decodes_total"  # decodes, verified, width: sum of running decodes
STEP_VERIFIED = PREFIX + "step_verified_tokens_total"  # decodes, verified, width: sum of verified tokens
PREFILL_STEPS = PREFIX + "prefill_steps_total"
PREFILL_STEP_SECONDS = PREFIX + "prefill_step_seconds_total"
CATCH_UP_STEPS = PREFIX + "catch_up_steps_total"  # decodes, width
CATCH_UP_STEP_SECONDS = PREFIX + "catch_up_step_seconds_total"  # decodes, width
CATCH_UP_STEP_DECODES = PREFIX + "catch_up_step_decodes_total"  # decodes, width: sum of running decodes
CATCH_UP_STEP_VERIFIED = PREFIX + "catch_up_step_verified_tokens_total"  # decodes, width: sum of verified tokens
CATCH_UP_STEP_READ = PREFIX + "catch_up_step_read_tokens_total"  # decodes, width: sum of positions read

RUNNING_DECODES = PREFIX + "running_decodes"  # gauge, traffic_class
ACTIVE_K = PREFIX + "active_k"  # gauge, traffic_class
SCHEDULE_VERSION = PREFIX + "schedule_version"  # gauge
SCHEDULE_AGE_SECONDS = PREFIX + "schedule_age_seconds"  # gauge
BACKLOG_TOKENS = PREFIX + "backlog_tokens"  # gauge: decoded positions that the drafter has not seen yet

LABEL_MODEL = "model_name"
LABEL_CLASS = "traffic_class"
LABEL_POSITION = "position"
LABEL_K = "k"
CELL_LABELS = ("decodes", "verified", "width")
CATCH_UP_LABELS = ("decodes", "width")

"""The names under which an engine reports its evidence: the adapter exports them, the controller reads them.

All are counters except the gauges at the end. Each has the label `model_name`, as vLLM's own metrics have. Positions
count from 1, bands (`policy.bands`) from 0. A draft counts for the band in which its K was chosen.

*Steps* are counted in cells of (running decodes, verified tokens, drafter slots, prefilled tokens), rounded to a coarse
grid to bound the number of series; a decode-only step has 0 prefilled tokens. A *slot* is one position that the drafter
lays out for one request in one step; requests that are left out take none. The sums beside the counts give each cell's
exact means, so a model that is linear within a cell loses nothing by the rounding. Steps in which the drafter also read
positions to catch up are counted separately, by powers of two of the decodes, verified tokens and slots.
"""

PREFIX = "specpilot_engine_"

TRIALS = PREFIX + "trials_total"  # band, position
ACCEPTS = PREFIX + "accepts_total"  # band, position
DRAFTS = PREFIX + "drafts_total"  # traffic_class, band, k: one per decode of a request per step, K = 0 included
PROBES = PREFIX + "probes_total"  # traffic_class
DECODE_TOKENS = PREFIX + "decode_tokens_total"  # traffic_class, band: tokens delivered by decodes
COLD_DECODES = PREFIX + "cold_decodes_total"  # traffic_class, band: at K = 0, to be probed, no draft verified yet

STEPS = PREFIX + "steps_total"  # decodes, verified, slots, prefill; the same labels on each of the sums
STEP_SECONDS = PREFIX + "step_seconds_total"
STEP_DECODES = PREFIX + "step_decodes_total"  # sum of running decodes
STEP_VERIFIED = PREFIX + "step_verified_tokens_total"  # sum of verified tokens
STEP_SLOTS = PREFIX + "step_slots_total"  # sum of drafter slots
STEP_PREFILL = PREFIX + "step_prefill_tokens_total"  # sum of prefilled tokens
STEP_CONTEXT = PREFIX + "step_context_tokens_total"  # sum over the scheduled requests of the length of their sequences
CATCH_UP_STEPS = PREFIX + "catch_up_steps_total"  # decodes, verified, slots; decode-only steps
CATCH_UP_STEP_SECONDS = PREFIX + "catch_up_step_seconds_total"
CATCH_UP_STEP_DECODES = PREFIX + "catch_up_step_decodes_total"
CATCH_UP_STEP_VERIFIED = PREFIX + "catch_up_step_verified_tokens_total"
CATCH_UP_STEP_SLOTS = PREFIX + "catch_up_step_slots_total"
CATCH_UP_STEP_CONTEXT = PREFIX + "catch_up_step_context_tokens_total"
CATCH_UP_STEP_READ = PREFIX + "catch_up_step_read_tokens_total"  # sum of positions read

RUNNING_DECODES = PREFIX + "running_decodes"  # gauge, traffic_class
ACTIVE_K = PREFIX + "active_k"  # gauge, traffic_class: mean K of its running decodes, over its bands
SCHEDULE_VERSION = PREFIX + "schedule_version"  # gauge
SCHEDULE_AGE_SECONDS = PREFIX + "schedule_age_seconds"  # gauge
BACKLOG_TOKENS = PREFIX + "backlog_tokens"  # gauge: decoded positions that the drafter has not seen yet

PRICE_SECONDS = PREFIX + "price_seconds"  # gauge, part; this one and the next six are `policy.prices.PriceList`
TOKEN_PRICE_SECONDS = PREFIX + "token_price_seconds"  # gauge, tokens: the price of one from so many in a step on
LEFT_OUT_SECONDS = PREFIX + "left_out_seconds"  # gauge
SLOWDOWN_RATIO = PREFIX + "slowdown_ratio"  # gauge
PREFILL_STEP_RATIO = PREFIX + "prefill_step_ratio"  # gauge
PREFILL_STEP_TOKENS = PREFIX + "prefill_step_tokens"  # gauge
CONTEXT_TOKENS = PREFIX + "context_tokens"  # gauge

LABEL_MODEL = "model_name"
LABEL_CLASS = "traffic_class"
LABEL_BAND = "band"
LABEL_POSITION = "position"
LABEL_K = "k"
LABEL_PART = "part"
LABEL_TOKENS = "tokens"
CELL_LABELS = ("decodes", "verified", "slots", "prefill")
CATCH_UP_LABELS = ("decodes", "verified", "slots")

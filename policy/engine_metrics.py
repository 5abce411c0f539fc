"""The names under which an engine reports its evidence: the adapter exports them, the controller reads them.

All are counters except the gauges at the end. Each has the label `model_name`, like vLLM's own metrics. Positions count
from 1, bands (`policy.bands`) from 0. A draft is counted under the band in which its K was chosen.

*Steps* are counted by kind: steps with prefilled tokens (`prefill` with decodes, `prompt` without), steps without
prefilled tokens in which the drafter also read positions to catch up (`catch_up`), and all others (`decode`).
"""

PREFIX = "specpilot_engine_"

TRIALS = PREFIX + "trials_total"  # band, position
ACCEPTS = PREFIX + "accepts_total"  # band, position
DRAFTS = PREFIX + "drafts_total"  # traffic_class, band, k: one per decode of a request per step, K = 0 included
PROBES = PREFIX + "probes_total"  # traffic_class
DECODE_TOKENS = PREFIX + "decode_tokens_total"  # traffic_class, band: tokens delivered by decodes
COLD_DECODES = PREFIX + "cold_decodes_total"  # traffic_class, band: at K = 0, of probed classes, no draft verified yet

STEPS = PREFIX + "steps_total"  # kind
STEP_SECONDS = PREFIX + "step_seconds_total"  # kind
STEP_DECODES = PREFIX + "step_decodes_total"  # kind: sum of running decodes
DECODE_SECONDS = PREFIX + "decode_seconds_total"  # of decoding steps except `catch_up`, without prefilling

RUNNING_DECODES = PREFIX + "running_decodes"  # gauge, traffic_class
ACTIVE_K = PREFIX + "active_k"  # gauge, traffic_class: mean K of its running decodes, over its bands
SCHEDULE_VERSION = PREFIX + "schedule_version"  # gauge
SCHEDULE_AGE_SECONDS = PREFIX + "schedule_age_seconds"  # gauge
BACKLOG_TOKENS = PREFIX + "backlog_tokens"  # gauge: decoded positions that the drafter has not read yet

PRICE_SECONDS = PREFIX + "price_seconds"  # gauge, part; this one and the next six are `policy.prices.PriceList`
TOKEN_PRICE_SECONDS = PREFIX + "token_price_seconds"  # gauge, tokens: the price of one, above this number in a step
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
LABEL_KIND = "kind"
CATCH_UP = "catch_up"
PROMPT = "prompt"
"""The kinds of steps that readers treat separately."""

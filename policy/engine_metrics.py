"""The names under which an engine reports its evidence: the adapter exports them, the controller reads them.

All are counters except two histograms, and the gauges at the end. Each has the labels `model_name` and `engine`, like
vLLM's own metrics; `engine` is the data-parallel rank, 0 without data parallelism. Positions count from 1, bands
(`policy.bands`) from 0. A draft is counted under the band in which its K was chosen.

*Steps* are counted by kind: steps with prefilled tokens (`prefill` with decodes, `prompt` without), steps without
prefilled tokens in which the drafter also read positions to catch up (`catch_up`), and all others (`decode`).
"""

PREFIX = "specpilot_engine_"

TRIALS = PREFIX + "trials_total"  # band, position
ACCEPTS = PREFIX + "accepts_total"  # band, position
DRAFTS = PREFIX + "drafts_total"  # traffic_class, band, k: one per decode of a request per step, K = 0 included
PROBES = PREFIX + "probes_total"  # traffic_class
DECODE_TOKENS = PREFIX + "decode_tokens_total"  # traffic_class, band: tokens delivered by decodes
UNPROBED_DECODES = PREFIX + "unprobed_decodes_total"  # traffic_class, band: at K = 0, of classes that are probed

STEPS = PREFIX + "steps_total"  # kind
STEP_SECONDS = PREFIX + "step_seconds_total"  # kind
STEP_DECODES = PREFIX + "step_decodes_total"  # kind: sum of running decodes
DECODE_SECONDS = PREFIX + "decode_seconds_total"  # of decoding steps except `catch_up`, without prefilling

TPOT_SECONDS = PREFIX + "tpot_seconds"  # histogram, traffic_class: of requests that ended
TTFT_SECONDS = PREFIX + "ttft_seconds"  # histogram, traffic_class
SLO_REQUESTS = PREFIX + "slo_requests_total"  # traffic_class, measure, result: by the goal in force
SLO_SECONDS = PREFIX + "slo_seconds_total"  # traffic_class, measure: their latencies, summed

RUNNING_DECODES = PREFIX + "running_decodes"  # gauge, traffic_class
ACTIVE_K = PREFIX + "active_k"  # gauge, traffic_class: mean K of its running decodes, over its bands
SCHEDULE_VERSION = PREFIX + "schedule_version"  # gauge
SCHEDULE_AGE_SECONDS = PREFIX + "schedule_age_seconds"  # gauge
BACKLOG_TOKENS = PREFIX + "backlog_tokens"  # gauge: decoded positions that the drafter has not read yet

STATIC_BREAKS_SLO = (
    PREFIX + "static_breaks_slo"
)  # gauge, only with an SLO: the static K breaks one, the law's choice none
SLO_PREDICTED_SECONDS = PREFIX + "slo_predicted_seconds"  # gauge, traffic_class: mean ITL of its slowest group
SLO_MEAN_PREDICTED_SECONDS = PREFIX + "slo_mean_predicted_seconds"  # gauge, traffic_class: mean ITL of the class
RUNNING_LIMIT = PREFIX + "running_limit"  # gauge, only with a limit: the most requests that may run

LABEL_MODEL = "model_name"
LABEL_ENGINE = "engine"
LABEL_CLASS = "traffic_class"
LABEL_BAND = "band"
LABEL_POSITION = "position"
LABEL_K = "k"
LABEL_KIND = "kind"
LABEL_MEASURE = "measure"
LABEL_RESULT = "result"
WITHIN, BEYOND = "within", "beyond"
CATCH_UP = "catch_up"
PROMPT = "prompt"
"""The kinds of steps that readers treat separately."""

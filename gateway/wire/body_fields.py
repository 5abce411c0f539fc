"""The names of the fields of a request's body that the gateway reads or sets. Pure."""

from typing import Final

XARGS: Final = "vllm_xargs"
CLASS_FIELD: Final = "traffic_class"
CEILING_FIELD: Final = "k_max"
MODEL: Final = "model"
PRIORITY: Final = "priority"
STREAM_OPTIONS: Final = "stream_options"
INCLUDE_USAGE: Final = "include_usage"
CONTINUOUS_USAGE: Final = "continuous_usage_stats"
REQUEST_ID: Final = "request_id"
PREVIOUS: Final = "previous_response_id"

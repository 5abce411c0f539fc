"""The bounds of an expiry are worded as dates."""

import re

import pytest

from specpilot.controller.admin.body import document_from
from specpilot.controller.admin.problems import ApiError
from specpilot.controller.admin.requests import FreezeRequest


def test_a_time_out_of_bounds_is_told_the_bounds_as_dates() -> None:
    bounds = "until: must be Unix seconds after 1970-01-01 00:01:00Z and at most 1980-01-09 00:01:00Z"
    for until in (60.0, 1e12):
        with pytest.raises(ApiError, match=re.escape(bounds)):
            document_from(FreezeRequest, {"until": until}, "freeze", 60.0)

"""The bounds of an expiry are worded as dates."""

from specpilot.controller.admin.expiry import expiry_faults


def test_a_time_out_of_bounds_is_told_the_bounds_as_dates() -> None:
    [fault] = expiry_faults({"until": 1e12}, 60.0, "until", "for_s")
    assert str(fault) == "until: must be Unix seconds after 1970-01-01 00:01:00Z and at most 1980-01-09 00:01:00Z"
    [fault] = expiry_faults({"for_s": 0}, 60.0, "until", "for_s")
    assert str(fault) == "for_s: must be above 0 and at most 316224000"

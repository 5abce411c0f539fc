"""Facts about schedules that tests assert."""

from specpilot.policy.schedule import Schedule


def largest_k(schedule: Schedule) -> int:
    """Return the largest K of any row."""
    return max(item.k for ranges in schedule.classes.values() for item in ranges)

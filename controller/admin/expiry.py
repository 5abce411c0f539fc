"""Expiry of keys, tokens and freezes: a time, or seconds from now. A request with both is rejected."""

from typing import Any

from specpilot.policy.clock import utc
from specpilot.policy.errors import Fault

LONGEST_S = 10 * 366 * 86_400
"""Ten years. The bound detects times given in milliseconds."""

EXPIRY_FIELDS = ("expires_at", "expires_in_s")


def expiry_faults(
    plain: dict[str, Any], now: float, at: str = "expires_at", within: str = "expires_in_s"
) -> list[Fault]:
    """Return the faults of the fields `at` and `within` of a request."""
    faults = []
    at_problem = f"must be Unix seconds after {utc(now)} and at most {utc(now + LONGEST_S)}"
    within_problem = f"must be above 0 and at most {LONGEST_S}"
    for name, low, high, problem in (
        (at, now, now + LONGEST_S, at_problem),
        (within, 0.0, LONGEST_S, within_problem),
    ):
        value = plain.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            faults.append(Fault(name, "must be a number of seconds"))
        elif not low < value <= high:
            faults.append(Fault(name, problem))  # without the value, which may be of any length
    if plain.get(at) is not None and plain.get(within) is not None:
        faults.append(Fault(within, f"and {at} say the same; give one of them"))
    return faults


def rotation_faults(plain: dict[str, Any], expires_at: float | None, now: float) -> list[Fault]:
    """Return the faults of the rotation `plain` of a key or token that expires at `expires_at` (Unix seconds)."""
    if expires_at is None or now < expires_at or plain.keys() & EXPIRY_FIELDS:
        return []
    return [Fault("expires_in_s", "is missing, and it has expired; give it, or expires_at (null: it does not expire)")]


def rotated_expiry(plain: dict[str, Any], expires_at: float | None, now: float) -> float | None:
    """Return the expiry after a rotation without faults: the given one, else the old one."""
    return expiry_in(plain, now) if plain.keys() & EXPIRY_FIELDS else expires_at


def expiry_in(plain: dict[str, Any], now: float, at: str = "expires_at", within: str = "expires_in_s") -> float | None:
    """Return the expiry in Unix seconds in a request without faults; `None` if it has none."""
    if plain.get(within) is not None:
        return now + float(plain[within])
    return None if plain.get(at) is None else float(plain[at])

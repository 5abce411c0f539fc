"""Errors of documents and of the shared state.

All derive from `PolicyError`, so that each program translates all of them in one place. An error names the field at
fault and the remedy. It never contains a secret.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a document: the field, and the problem with its remedy."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class PolicyError(Exception):
    """Root of the errors of the shared contract."""

    code = "policy_error"


class InvalidDocumentError(PolicyError):
    """A document is invalid. Carries every fault found, not just the first."""

    code = "invalid_document"

    def __init__(self, kind: str, faults: tuple[Fault, ...]) -> None:
        self.kind = kind
        self.faults = faults
        super().__init__(f"invalid {kind}: " + "; ".join(str(fault) for fault in faults))


class VersionConflictError(PolicyError):
    """Another writer changed the document since it was read: read it again, then decide."""

    code = "version_conflict"

    def __init__(self, key: str, expected: int, stored: int) -> None:
        self.expected = expected
        self.stored = stored
        super().__init__(f"{key} is at version {stored}, not {expected}: read it again and repeat the change")


class FencedError(PolicyError):
    """The writer is no longer the leader: its lease went to another controller."""

    code = "fenced"


class StoreUnavailableError(PolicyError):
    """Redis did not answer in time. Readers keep their last snapshot; writers try again."""

    code = "store_unavailable"


class StoreRefusedError(StoreUnavailableError):
    """The user of Redis lacks a right for this command; Redis answers others."""


class StoreFullError(StoreUnavailableError):
    """Redis has reached `maxmemory`: it refuses commands that need memory, and answers all others."""

    def __init__(self) -> None:
        super().__init__(
            "Redis is full (maxmemory) and takes nothing new: raise maxmemory, "
            "or remove what does not belong to SpecPilot"
        )

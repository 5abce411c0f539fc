"""What can be wrong with a document or with the shared state, and who can mend it.

Every error of the shared contract derives from `PolicyError`, so that each program can translate the
whole family once, at its own edge. An error names the field at fault and the remedy; it never carries
a secret.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a document: where, and what to do about it."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class PolicyError(Exception):
    """Root of the errors of the shared contract."""

    code = "policy_error"


class InvalidDocumentError(PolicyError):
    """A document does not say what it must. Carries every fault found, not just the first."""

    code = "invalid_document"

    def __init__(self, kind: str, faults: tuple[Fault, ...]) -> None:
        self.kind = kind
        self.faults = faults
        super().__init__(f"invalid {kind}: " + "; ".join(str(fault) for fault in faults))


class VersionConflictError(PolicyError):
    """Somebody else wrote the document since it was read: read it again, then decide."""

    code = "version_conflict"

    def __init__(self, key: str, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"{key} is at version {found}, not {expected}: read it again and repeat the change")


class FencedError(PolicyError):
    """The writer is no longer the leader: its lease went to another controller."""

    code = "fenced"


class StoreUnavailableError(PolicyError):
    """Redis did not answer in time. Whoever reads keeps its last snapshot; whoever writes tries again."""

    code = "store_unavailable"


class StoreFullError(StoreUnavailableError):
    """Redis has reached `maxmemory` and refuses what would grow it; it answers all else."""

    def __init__(self) -> None:
        super().__init__(
            "Redis is full (maxmemory) and takes nothing new: raise maxmemory, "
            "or remove what does not belong to SpecPilot"
        )

"""A line of the report: one check and its outcome."""

from dataclasses import asdict, dataclass

PASSED, FAILED, SKIPPED, MEASURED = "passed", "failed", "skipped", "measured"


@dataclass(frozen=True, slots=True)
class Line:
    """A check's `name` and `verdict`; `text` has the figures, or the reason that it was skipped."""

    name: str
    verdict: str
    text: str

    def plain(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)


def judged(name: str, text: str, *, is_right: bool) -> Line:
    """Return a line that passed if `is_right`."""
    return Line(name, PASSED if is_right else FAILED, text)

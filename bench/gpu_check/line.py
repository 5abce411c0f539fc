"""A line of the report: one thing that was checked, and what came of it."""

from dataclasses import asdict, dataclass

PASSED, FAILED, SKIPPED, MEASURED = "passed", "failed", "skipped", "measured"


@dataclass(frozen=True, slots=True)
class Line:
    """`name` is what was checked, `verdict` what came of it, `text` the figures, or why it was skipped."""

    name: str
    verdict: str
    text: str

    def plain(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)


def judged(name: str, text: str, *, is_right: bool) -> Line:
    """Return a line that passed where `is_right`."""
    return Line(name, PASSED if is_right else FAILED, text)

"""A clock that only the test moves."""

from dataclasses import dataclass


@dataclass
class Clock:
    at: float = 100.0

    def now(self) -> float:
        return 1e9 + self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, duration_s: float) -> None:
        self.at += duration_s

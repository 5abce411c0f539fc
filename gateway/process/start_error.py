"""The error of a gateway process that cannot start, for the person who started it."""


class StartError(Exception):
    """The gateway cannot start. Each line names a setting and the remedy."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        super().__init__("; ".join(lines))

"""Standard input, output and error that are closed at the start of a program.

The next files that it opens would get their numbers: a line for standard error would go into a connection, and libuv
aborts when it closes one. So each is opened as the null device.
"""

import os
import sys


def open_closed() -> None:
    """Open those that are closed; call before anything else is opened."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - to the end
